"""Mechanisms with a fault planted in the real path, for tests of the audit."""

import contextlib
import dataclasses
import random

import numpy as np

import fulcrum
from fulcrum.audit.replays.audited_path import OVERSIZE, AuditedPath, region_sum, silo_release
from fulcrum.core.masking import masks
from fulcrum.core.noise.mechanism import clip
from fulcrum.core.noise.noise_sources import SeededNoise
from fulcrum.core.silo.releasing import seeded_mechanism
from fulcrum.planning.plan import Plan


def perturbed(clipped, plan, silo, drawn):
    """What a silo's research mechanism makes of these draws."""
    mechanism = seeded_mechanism(plan, silo, SeededNoise(seed=0), 1)
    return dataclasses.replace(mechanism, draw=lambda shape: drawn).perturb(clipped)


SIZES = {"north": [100] * 8, "south": [200, 150, 120, 90], "west": [300]}


def made(purpose="research", sizes=SIZES, **options):
    given = {"rounds": 10, "epsilon": 1.0, "purpose": purpose, "parameters": 40}
    return fulcrum.plan(fulcrum.Federation.from_sizes(sizes), **given | options)


def narrow_noise(plan, share=0.7):
    """Noise at 70 % of the plan's width."""

    def released(path, silo, number, signs, seed):
        clipped = clip(signs * path.clip_canary(), np.inf)
        if plan.purpose == "deployment":
            terms = path.terms(silo)
            return dataclasses.replace(terms, width=share * terms.width).perturb(clipped)
        drawn = SeededNoise(seed=seed).standard_normal(round_number=number, block=silo, shape=signs.shape)
        return perturbed(clipped, plan, silo, share * drawn)

    return AuditedPath(plan=plan, released=released)


def no_clip(plan):
    """An update goes as it is."""
    return AuditedPath(
        plan=plan,
        released=lambda path, silo, number, signs, seed: silo_release(path, silo, number, OVERSIZE * signs, seed),
    )


class HalfSensitivity(Plan):
    """A plan that counts a silo's change as C, and not as 2C."""

    times = 2.0

    def _shift(self, tier, *, colluders=None, dropouts=None):
        return super()._shift(tier, colluders=colluders, dropouts=dropouts) / self.times


def half_sensitivity(plan, times=2.0):
    """The noise is half of what the plan should have, and the plan states the epsilon of the whole."""
    fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan) if field.init}
    stating = type("Understated", (HalfSensitivity,), {"times": times})
    return AuditedPath(plan=stating(**fields | {"noise_multiplier": plan.noise_multiplier / times}))


def one_silo_silent(plan, silent=3):
    """One silo's noise is missing from its region."""

    def released(path, silo, number, signs, seed):
        if silo == silent:
            weight = plan.federation.weights[silo] * plan.clip_norm / path.step
            return (signs * weight).astype(np.int64 if plan.purpose == "deployment" else np.float64)
        return silo_release(path, silo, number, signs, seed)

    return AuditedPath(plan=plan, released=released)


def unweighted_noise(plan):
    """A weight is applied to the update and not to its noise."""

    def released(path, silo, number, signs, seed):
        weight = float(plan.federation.weights[silo])
        if plan.purpose == "deployment":
            terms = path.terms(silo)
            wide = dataclasses.replace(terms, width=terms.width / weight)
            return wide.perturb(signs * path.clip_canary())
        drawn = SeededNoise(seed=seed).standard_normal(round_number=number, block=silo, shape=signs.shape)
        return perturbed(signs * path.clip_canary(), plan, silo, drawn / weight)

    return AuditedPath(plan=plan, released=released)


def reused_noise(plan):
    """Noise of the first round is used again in every other."""
    assert plan.purpose == "research", "secure noise cannot be drawn again"

    def released(path, silo, number, signs, seed):
        drawn = SeededNoise(seed=seed).standard_normal(round_number=1, block=silo, shape=signs.shape)
        return perturbed(signs * path.clip_canary(), plan, silo, drawn)

    return AuditedPath(plan=plan, released=released)


def reused_every_third(plan):
    """Noise is used again three rounds later, where the canary's pattern has the other sign or not."""
    assert plan.purpose == "research"

    def released(path, silo, number, signs, seed):
        return silo_release(path, silo, (number - 1) % 3 + 1, signs, seed)

    return AuditedPath(plan=plan, released=released)


def forwarding(plan):
    """A region sends its silos' releases up beside their sum."""

    def sent_up(path, region, releases, number, seed):
        total = region_sum(path, region, releases, number, seed)
        return np.concatenate([total, releases]) if len(releases) > 1 else total

    return AuditedPath(plan=plan, sent_up=sent_up)


def children_beside_the_sum(plan):
    """A country sends a region's sum up beside its own."""
    return AuditedPath(plan=plan, sent_out=lambda path, node, sums, number: np.stack([np.sum(sums, axis=0), sums[0]]))


def child_in_place_of_the_sum(plan):
    """A country sends one region's sum up as its own: the noise of its other regions is missing."""
    return AuditedPath(plan=plan, sent_out=lambda path, node, sums, number: sums[0][None])


def lattices_of_their_own(plan, coarse="heavy", times=2**18):
    """One region releases on a coarser lattice than the others, and the sums are added up."""
    inner = plan.federation.innermost
    chosen = inner.nodes.index(coarse)

    def released(path, silo, number, signs, seed):
        if inner.parent_of[silo] != chosen:
            return silo_release(path, silo, number, signs, seed)
        terms = path.terms(silo)
        own = dataclasses.replace(terms, step=terms.step * times, width=terms.width / times)
        return own.perturb(signs * path.clip_canary()) * times

    return AuditedPath(plan=plan, released=released)


@contextlib.contextmanager
def masks_from_short_seeds(bits=32):
    """Silos draw the seeds of their masks from 32 bits, and expand them to as many as a seed should have."""
    real, drawn = masks.new_seed, random.Random(1)
    masks.new_seed = lambda: random.Random(drawn.getrandbits(bits)).randbytes(32)
    try:
        yield
    finally:
        masks.new_seed = real
