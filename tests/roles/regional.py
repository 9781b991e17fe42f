"""A federation of two regions with keys, plans and releases, for tests of a region."""

import dataclasses

import numpy as np
import pytest

import fulcrum
from fulcrum.aggregation.regional_aggregator import Region
from fulcrum.core.messages.layout import Layout
from fulcrum.core.messages.sealing import Sealer
from fulcrum.core.noise.noise_sources import SeededNoise
from fulcrum.core.silo.release_parameters import release_parameters_of
from fulcrum.core.silo.releasing import _lattice_release, release
from fulcrum.errors import ExchangeError
from fulcrum.planning.files.plan_issue import new_key

SIZES = {"north": {"lille": 120, "metz": 80, "caen": 100}, "south": {"nice": 300}}
MEMBERS = ("caen", "lille", "metz")
PARAMETERS = 40
LAYOUT = Layout(names=("weight", "bias"), shapes=((2, 19), (2,)))
UPDATE = {"weight": np.full((2, 19), 0.5), "bias": np.zeros(2)}


class World:
    def __init__(self, folder):
        self.folder = folder
        silos = [silo for members in SIZES.values() for silo in members]
        self.keys = {name: new_key(folder / name) for name in silos}
        self.keys |= {name: new_key(folder / name, "sealing") for name in SIZES}
        self.plan, self.tight = self.made(dropouts=1), self.made(dropouts=0)
        self.research = self.made(dropouts=1, purpose="research")
        self.sealers = {}

    def made(self, parameters=PARAMETERS, purpose="deployment", sizes=SIZES, **options):
        return fulcrum.plan(
            fulcrum.Federation.from_sizes(sizes),
            rounds=6,
            epsilon={"region": 1.0, "aggregator": 6.0},
            parameters=parameters,
            purpose=purpose,
            keys=self.keys,
            **options,
        )

    def release(self, silo, number=1, plan=None, *, values=None, layout=LAYOUT):
        """An honest release, or one of chosen values."""
        plan = plan or self.plan
        if values is None and plan.purpose == "research":
            return release(UPDATE, plan, silo, number, noise=SeededNoise(seed=5))
        flat = np.concatenate([array.ravel() for array in UPDATE.values()])
        made = None
        if plan.purpose == "deployment":
            made = _lattice_release(flat, LAYOUT, release_parameters_of(plan, silo), number)
        else:
            made = release(UPDATE, plan, silo, number, noise=SeededNoise(seed=5))
        return dataclasses.replace(made, layout=layout, **({} if values is None else {"values": np.asarray(values)}))

    def seal(self, made, plan=None):
        plan = plan or self.plan
        key = (plan.digest, made.silo)
        if key not in self.sealers:
            self.sealers[key] = Sealer(plan, made.silo, self.folder / made.silo)
        return self.sealers[key].seal(made)

    def sealed(self, silo, number=1, plan=None, **options):
        return self.seal(self.release(silo, number, plan, **options), plan)

    def open(self, path, plan=None, region="north", layout=LAYOUT, **options):
        """A region to which the server has sent a model, unless its layout is None."""
        opened = Region.open(path, plan or self.plan, region, self.folder / region, **options)
        if layout is not None:
            opened.expect_layout(layout)
        return opened


def refusal(work, *arguments, kind=ExchangeError, **options):
    with pytest.raises(kind) as caught:
        work(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
