import ast
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

import fulcrum
from fulcrum.core.plan import recomputed, recomputed_phases, verification
from fulcrum.core.plan import verify_floors as verification_of_floors
from fulcrum.core.plan import verify_masking as verification_of_masking
from fulcrum.core.plan import verify_persons as verification_of_persons
from fulcrum.core.plan import verify_weights as verification_of_weights
from fulcrum.core.plan.plan_file import content_digest
from fulcrum.core.plan.verification import verify
from fulcrum.core.topology import Tier
from fulcrum.errors import PlanError
from fulcrum.planning.files.differences import differences
from fulcrum.planning.inputs.execution import Execution
from fulcrum.planning.inputs.past_releases import Past
from fulcrum.planning.inputs.targets import Target
from fulcrum.planning.planner import make_plan, plan
from fulcrum.planning.theory.prior import Coupling
from fulcrum.readers.federation import Federation

NESTED = Federation.from_sizes(
    {"a": [5, 3, 1], "b": [4, 4], "c": [7], "d": [2, 2, 9]}, outer={"country": {"x": ["a", "b"], "y": ["c", "d"]}}
)

PLANS = [
    {"epsilon": 1.0},
    {"epsilon": {"region": 1.0, "aggregator": 8.0, "country": 0.6, "federation": 0.5}},
    {"epsilon": 1.0, "colluders": 1},
    {"epsilon": {"region": 1.0, "country": 0.5}, "colluders": 2},
    {"epsilon": 1.0, "allocation": "least-under-collusion", "colluders": 1},
    {"epsilon": {"region": 1.0, "country": 0.5}, "colluders": 1, "dropouts": 1},
    {"epsilon": 1.0, "dropouts": 2},
    {"epsilon": {"region": 1.0, "aggregator": 8.0, "federation": 0.5}, "purpose": "deployment", "parameters": 9},
    {"information": 2.2, "floor": Coupling(20), "bound": "capacity", "parameters": 9},
    {"information": 2.2, "floor": Coupling(20), "bound": "capacity"},
    {"epsilon": 1.0, "injection": "aggregator"},
    {"information": 2.2, "floor": Coupling(20)},
    {"budget": 3.0},
    {"epsilon": 1.0, "allocation": "inverse-size", "accountant": "renyi"},
]


def sealed(content):
    return msgspec.structs.replace(content, digest=content_digest(content))


@pytest.mark.parametrize("settings", PLANS)
def test_every_plan_verifies_on_a_path_of_its_own(settings):
    checks = verify(sealed(plan(NESTED, rounds=10, **settings).content()))
    assert [check for check in checks if not check.holds] == []
    names = {check.name for check in checks}
    assert {"noise budget", "saving", "dispersion", "epsilon at silo", "epsilon at region"} <= names


def test_a_large_plan_read_off_a_table_verifies():
    rng = np.random.default_rng(0)
    sizes = np.round(np.geomspace(1e3, 1e9, 21_000))  # the lightest silos have epsilon 0
    tier = Tier.from_labels("region", [f"r{k}" for k in rng.integers(0, 5, len(sizes))])
    made = plan(Federation(name="long tail", sizes=sizes, tiers=(tier,)), rounds=10, epsilon=1.0)
    assert [check for check in verify(made.content()) if not check.holds] == []


def short_by(share):
    """A deployment plan of less noise than its steps and needs ask for."""
    content = plan(
        NESTED, rounds=10, epsilon={"region": 1.0, "aggregator": 8.0}, purpose="deployment", parameters=9
    ).content()
    content.silos[:] = [
        msgspec.structs.replace(entry, noise_multiplier=entry.noise_multiplier * (1 - share)) for entry in content.silos
    ]
    return content


@pytest.mark.parametrize("share", [1e-3, 1e-6, 1e-8])
def test_noise_that_is_short_by_a_little_fails(share):
    failed = {check.name for check in verify(short_by(share)) if not check.holds}
    assert "requirement at region" in failed
    assert [check for check in verify(short_by(0.0)) if not check.holds] == []


@pytest.mark.parametrize("multiplier", [0.0, 1e-100, 1e-90])
def test_a_multiplier_that_conceals_nothing_is_told_apart_without_a_traceback(multiplier):
    content = plan("isic-paper", rounds=10, epsilon=1.0).content()
    content = change_silo(content, noise_multiplier=multiplier)
    failed = {check.name for check in verify(content) if not check.holds}
    assert {"epsilon at silo", "requirement at region"} <= failed


BROKEN = {
    "a negative multiplier": lambda c: change_silo(c, noise_multiplier=-c.silos[3].noise_multiplier),
    "a multiplier whose square is 0": lambda c: change_silo(c, noise_multiplier=1e-155),
    "no number": lambda c: change_silo(c, noise_multiplier=math.nan),
    "an infinite multiplier": lambda c: change_silo(c, noise_multiplier=math.inf),
    "a text in place of a number": lambda c: change_silo(c, noise_multiplier="much"),
    "an array in place of a number": lambda c: change_silo(c, noise_multiplier=np.ones(2)),
    "an epsilon left out": lambda c: change_silo(c, epsilon={"region": 1.0}),
    "a region that is not there": lambda c: change_silo(c, node="nowhere"),
    "a tier that is not there": lambda c: with_part(c, federation={"tiers": ["region", "land"]}),
    "a target on no tier": lambda c: with_part(c, settings={"required_multiplier": {"land": 1.0}}),
    "no delta": lambda c: with_part(c, settings={"delta": 0.0}),
    "no silos": lambda c: msgspec.structs.replace(c, silos=[]),
    "an older format": lambda c: msgspec.structs.replace(c, format="fulcrum.plan/1"),
    "another federation": lambda c: with_part(c, federation={"digest": "0" * 64}),
}


@pytest.mark.parametrize("edit", BROKEN.values(), ids=list(BROKEN))
def test_a_content_in_memory_that_no_file_can_have_is_refused_as_its_file_would_be(edit):
    content = edit(plan("isic-paper", rounds=10, epsilon=1.0).content())
    for work in (verify, lambda broken: differences(broken, broken)):
        with pytest.raises(PlanError, match=r"^the plan\b.*Make the plan again with: fulcrum plan$") as caught:
            work(content)
        assert "\n" not in str(caught.value)


def test_of_what_computes_a_plan_verification_shares_accountant_and_unit_alone():
    shared = {
        node.module
        for module in (
            recomputed,
            recomputed_phases,
            verification,
            verification_of_floors,
            verification_of_masking,
            verification_of_persons,
            verification_of_weights,
        )
        for node in ast.walk(ast.parse(Path(module.__file__).read_text()))
        if isinstance(node, ast.ImportFrom)
    }
    ours = {name.removeprefix("fulcrum.") for name in shared if name.startswith("fulcrum.")}
    words_and_file = {
        "checks",
        "core.plan.earlier_words",
        "core.plan.guarantee",
        "core.plan.plan_file",
        "core.plan.plan_reader",
        "core.plan.recomputed",
        "core.plan.recomputed_phases",
    } | {
        "core.plan.verify_floors",
        "core.plan.verify_masking",
        "core.plan.verify_persons",
        "core.plan.verify_weights",
    }
    assert ours == {"core.accounting", "core.privacy_unit", "core.topology", *words_and_file}
    assert not {name for name in ours if name.startswith("planning")}


def with_part(content, **changes):
    """The content with fields of one of its parts changed: `with_part(content, summary={"saving": 0.9})`."""
    parts = {part: msgspec.structs.replace(getattr(content, part), **change) for part, change in changes.items()}
    return msgspec.structs.replace(content, **parts)


def change_silo(content, **change):
    content.silos[3] = msgspec.structs.replace(content.silos[3], **change)
    return content


@pytest.mark.parametrize(
    ("edit", "fails"),
    [
        (lambda c: change_silo(c, noise_multiplier=c.silos[3].noise_multiplier / 2), "requirement at region"),
        (lambda c: change_silo(c, epsilon=c.silos[3].epsilon | {"region": 0.2}), "epsilon at region"),
        (lambda c: change_silo(c, epsilon=c.silos[3].epsilon | {"silo": 99.0}), "epsilon at silo"),
        (lambda c: with_part(c, summary={"saving": 0.9}), "saving"),
        (lambda c: with_part(c, summary={"dispersion": 0.9}), "dispersion"),
        (lambda c: with_part(c, summary={"noise_budget": 0.1}), "noise budget"),
        (lambda c: with_part(c, summary={"uniform_noise_budget": 0.1}), "uniform noise budget"),
        (lambda c: with_part(c, summary={"epsilon_inside_worst": 1.0}), "worst epsilon inside"),
        (lambda c: with_part(c, summary={"epsilon_above_mean": 0.1}), "mean epsilon above"),
        (lambda c: with_part(c, guarantee={"sensitivity": 1.0}), "sensitivity is 2C"),
        (lambda c: with_part(c, settings={"epsilon": {"region": 0.5}}), "epsilon target at region"),
        (
            lambda c: msgspec.structs.replace(
                c, tiers={**c.tiers, "region": [msgspec.structs.replace(n, exposure=0.1) for n in c.tiers["region"]]}
            ),
            "nodes of region",
        ),
    ],
)
def test_every_figure_that_is_wrong_is_caught(edit, fails):
    content = edit(plan(NESTED, rounds=10, epsilon=1.0).content())
    assert fails in {check.name for check in verify(content) if not check.holds}


@pytest.mark.parametrize(
    "words", [{"statement": "Everyone is safe."}, {"adjacency": "add one record"}, {"assumptions": []}]
)
def test_words_that_the_figures_do_not_say_fail(words):
    content = plan(NESTED, rounds=10, epsilon=1.0).content()
    lying = with_part(content, guarantee=words)
    assert "words" in {check.name for check in verify(lying) if not check.holds}


def test_a_plan_is_verified_in_memory_or_from_its_file(tmp_path):
    made = plan(NESTED, rounds=10, epsilon=1.0)
    fulcrum.save_plan(made, tmp_path / "plan.json")
    assert all(check.holds for check in verify(made))
    assert all(check.holds for check in verify(tmp_path / "plan.json"))


def test_a_digest_of_other_content_fails():
    content = sealed(plan(NESTED, rounds=10, epsilon=1.0).content())
    changed = msgspec.structs.replace(content, made_by="someone else")
    assert "digest" in {check.name for check in verify(changed) if not check.holds}


def with_settings(content, **change):
    return msgspec.structs.replace(content, settings=msgspec.structs.replace(content.settings, **change))


@pytest.mark.parametrize("share", [1e-3, 1e-6, -1e-3, -1e-6])
@pytest.mark.parametrize("settings", PLANS)
def test_a_requirement_that_is_not_what_the_targets_ask_for_fails(settings, share):
    content = plan(NESTED, rounds=10, **settings).content()
    for tier, asked in content.settings.required_multiplier.items():
        other = [a * (1 + share) for a in asked] if isinstance(asked, list) else asked * (1 + share)
        forged = with_settings(content, required_multiplier=content.settings.required_multiplier | {tier: other})
        failed = {check.name: check.detail for check in verify(forged) if not check.holds}
        assert "is not what its targets ask for" in failed[f"requirement at {tier}"]


def test_no_saving_is_claimed_against_a_requirement_that_nobody_asked_for():
    content = plan(NESTED, rounds=10, epsilon=1.0, allocation="inverse-size").content()
    asked = {**content.settings.required_multiplier, "silo": [entry.noise_multiplier for entry in content.silos]}
    forged = with_settings(content, required_multiplier=asked)
    uniform = verification.Recomputed(forged).uniform_budget()
    claimed = msgspec.structs.replace(
        forged.summary, uniform_noise_budget=uniform, saving=1 - forged.summary.noise_budget / uniform
    )
    assert claimed.saving > content.summary.saving + 0.1
    failed = {check.name for check in verify(msgspec.structs.replace(forged, summary=claimed)) if not check.holds}
    assert failed == {"requirement at silo"}


@pytest.mark.parametrize("settings", [{"epsilon": 1.0}, {"information": 2.2, "floor": 0.5}])
def test_a_requirement_that_is_left_out_or_0_is_told_apart_without_a_traceback(settings):
    content = plan(NESTED, rounds=10, **settings).content()
    asked_of_all = with_settings(content, required_multiplier={"region": 0.0, "silo": 1e-9})
    failed = {check.name for check in verify(asked_of_all) if not check.holds}
    assert "requirement at region" in failed
    content = plan(NESTED, rounds=10, epsilon={"region": 1.0, "federation": 0.5}).content()
    left_out = {"federation": content.settings.required_multiplier["federation"]}
    failed = {check.name for check in verify(with_settings(content, required_multiplier=left_out)) if not check.holds}
    assert "requirement at region" in failed


def test_what_was_released_before_counts_toward_an_information_bound():
    spent = {"region": np.full(len(NESTED), 0.1), "silo": np.full(len(NESTED), 0.1)}
    target = Target(rounds=10, epsilon={"region": 3.0})
    content = make_plan(NESTED, target, Execution(), Past(spent=spent)).content()
    seen = verification.Recomputed(content)
    rounds = max(20 / s**2 for s in seen.effective("region"))
    for bound, holds in ((rounds + 0.05, True), (rounds + 0.04, False)):
        checks = {check.name: check.holds for check in verify(with_settings(content, information=bound))}
        assert checks["information bound"] == holds


DEPLOYED = {"epsilon": {"region": 1.0, "aggregator": 8.0}, "purpose": "deployment", "parameters": 9}


def failed(content):
    return {check.name for check in verify(content) if not check.holds}


def test_a_step_that_differs_from_region_to_region_fails():
    """On a coarser lattice the noise of one region leaves the low bits of a finer sum bare."""
    content = plan(NESTED, rounds=10, **DEPLOYED).content()
    for place in range(len(content.tiers["region"])):
        for factor in (0.5, 0.25):
            nodes = list(content.tiers["region"])
            nodes[place] = msgspec.structs.replace(nodes[place], lattice_step=nodes[place].lattice_step * factor)
            assert failed(msgspec.structs.replace(content, tiers={**content.tiers, "region": nodes})) == {"lattice"}


def test_a_reserve_that_does_not_cover_what_lattice_noise_costs_fails():
    """A plan reserves twice what it needs: half of that is the least."""
    content = plan(NESTED, rounds=10, **DEPLOYED).content()
    reserve = content.settings.reserve
    assert failed(with_settings(content, reserve=0.5001 * reserve)) == set()
    for share in (0.4999, 0.1, 0.0):
        assert failed(with_settings(content, reserve=share * reserve)) == {"lattice"}


def stated_below(content, share):
    """Contents in each of which one epsilon is stated below what it is by a share, with the check that must fail."""
    seen = verification.Recomputed(content)
    for tier in ("silo", "region", "country", "federation"):
        true = seen.epsilon(tier)
        for place in (0, len(true) - 1):
            silos = list(content.silos)
            epsilon = silos[place].epsilon | {tier: true[place] * (1 - share)}
            silos[place] = msgspec.structs.replace(silos[place], epsilon=epsilon)
            yield f"epsilon at {tier}", msgspec.structs.replace(content, silos=silos)
    for tier in ("region", "country"):
        worst = {
            node: max(e for e, n in zip(seen.epsilon(tier), seen.path[tier], strict=True) if n == node)
            for node in set(seen.path[tier])
        }
        nodes = list(content.tiers[tier])
        nodes[-1] = msgspec.structs.replace(nodes[-1], epsilon_worst=worst[nodes[-1].name] * (1 - share))
        yield f"nodes of {tier}", msgspec.structs.replace(content, tiers={**content.tiers, tier: nodes})
    for where, tier in (("above", "region"), ("inside", "silo")):
        true = seen.epsilon(tier)
        for how, value in (("worst", max(true)), ("mean", math.fsum(true) / len(true))):
            yield f"{how} epsilon {where}", with_part(content, summary={f"epsilon_{where}_{how}": value * (1 - share)})


@pytest.mark.parametrize("share", [1e-3, 1e-6])
def test_no_epsilon_may_be_stated_below_what_it_is(share):
    content = plan(NESTED, rounds=10, epsilon=1.0).content()
    names = set()
    for name, lower in stated_below(content, share):
        assert name in failed(lower)
        names.add(name)
    assert len(names) == 10
