"""A federation of two countries, four regions and twelve silos: aggregators of two tiers under a server."""

import numpy as np

import fulcrum
from fulcrum.aggregation.regional_aggregator import Region
from fulcrum.aggregation.sum_sealing import SumSealer
from fulcrum.core.messages.aggregation_tree import tree_of
from fulcrum.core.messages.layout import Layout
from fulcrum.core.messages.sealing import Sealer
from fulcrum.core.noise.noise_sources import SeededNoise
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.core.silo.release_parameters import release_parameters_of
from fulcrum.core.silo.releasing import _lattice_release, release
from fulcrum.planning.files.plan_issue import new_key
from fulcrum.server.coordinator import Coordinator

SIZES = {region: dict.fromkeys([f"{region}{k}" for k in (1, 2, 3)], 100) for region in "abcd"}
OUTER = {"country": {"east": ["a", "b"], "west": ["c", "d"]}}
LAYOUT = Layout(names=("weight", "bias"), shapes=((2, 19), (2,)))
START = {"weight": np.zeros((2, 19)), "bias": np.zeros(2)}
EPSILON = {"aggregator": 12.0, "region": 6.0, "country": 2.0}


class NestedWorld:
    """Keys and plans of the federation, and a folder for the files of its nodes."""

    def __init__(self, folder):
        self.folder = folder
        self.keys = {silo: new_key(folder / silo) for members in SIZES.values() for silo in members}
        self.keys |= {node: new_key(folder / node, "sealing") for node in (*SIZES, *OUTER["country"])}
        self.plan = self.made()

    def made(self, epsilon=EPSILON, rounds=2, purpose="deployment", **options):
        plan = fulcrum.plan(
            fulcrum.Federation.from_sizes(SIZES, outer=OUTER),
            rounds=rounds,
            epsilon=epsilon,
            parameters=40,
            purpose=purpose,
            keys=self.keys,
            **options,
        )
        return verified_plan(plan)

    def release(self, silo, number=1, plan=None, factor=0.1):
        """An honest release of a silo."""
        plan = plan or self.plan
        flat = np.full(40, factor)
        if plan.purpose == "deployment":
            return _lattice_release(flat, LAYOUT, release_parameters_of(plan, silo), number)
        return release(LAYOUT.arrays(flat), plan, silo, number, noise=SeededNoise(seed=4))


class Nodes:
    """The aggregators of a plan with their files, and the coordinator: a round goes up tier by tier."""

    def __init__(self, world, folder, plan=None):
        self.world, self.folder, self.plan = world, folder, plan or world.plan
        self.tree, self.opened = tree_of(self.plan), {}
        self.server = Coordinator.open(folder / "server", self.plan, START)
        self.sent = {}  # node -> the sealed replies that left the node
        self.releases = {}

    def node(self, name):
        if name not in self.opened:
            self.opened[name] = Region.open(self.folder / f"{name}.db", self.plan, name, self.world.folder / name)
            self.opened[name].expect_layout(LAYOUT)
        return self.opened[name]

    def restart(self, name):
        if name in self.opened:
            self.opened.pop(name).close()

    def sealed_release(self, silo, number):
        if (silo, number) not in self.releases:
            self.releases[silo, number] = self.world.release(silo, number, self.plan)
        return Sealer(self.plan, silo, self.world.folder / silo).seal(self.releases[silo, number])

    def seal(self, name, reply):
        return SumSealer(self.plan, name, self.world.folder / name).seal(reply.to_bytes(), reply.round_number)

    def gather(self, name, number, gone=()):
        """Lets a region accept the releases of its silos, or a node the sums of its children; returns the reply."""
        node = self.node(name)
        if children := self.tree.children(name):
            for child in children:
                if child not in gone:
                    node.accept(self.seal(child, self.gather(child, number, gone)), number)
        else:
            for silo in self.tree.silos(name):
                if silo not in gone:
                    node.accept(self.sealed_release(silo, number), number)
        return node.close_round(number)

    def run_round(self, gone=()):
        number = self.server.round_number
        for name in self.tree.reporting:
            if name not in gone:
                self.server.receive(self.gather(name, number, gone).to_bytes(), name)
        return self.server.finish_round()

    def close(self):
        for name in list(self.opened):
            self.restart(name)
