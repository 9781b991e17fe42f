"""Aggregators above regions: one sum a round, of whole sums of children, that no carrier and no neighbour can forge."""

import base64
import itertools
import sqlite3

import msgspec
import numpy as np
import pytest
from error_codes import coded
from nested import EPSILON, LAYOUT, OUTER, SIZES, START, NestedWorld, Nodes

import fulcrum
from fulcrum.aggregation.contributions import intake_of
from fulcrum.aggregation.norm_tests import largest_sum
from fulcrum.aggregation.presence import aggregation_of
from fulcrum.aggregation.regional_aggregator import Region
from fulcrum.aggregation.stage_messages import StageEnd
from fulcrum.aggregation.sum_sealing import SumOpener, SumSealer
from fulcrum.core.messages.aggregation_tree import tree_of
from fulcrum.core.messages.framing import frame, unframe
from fulcrum.core.messages.layout import Layout
from fulcrum.core.messages.regional_reply import RegionalSum, Withheld
from fulcrum.core.plan.figures import effective_multiplier, unmet_tiers
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.core.silo.release_parameters import release_parameters_of
from fulcrum.core.silo.releasing import _lattice_release
from fulcrum.errors import ExchangeError, FederationError, StorageError
from fulcrum.planning.files.plan_issue import new_key
from fulcrum.server.coordinator import Coordinator


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return NestedWorld(tmp_path_factory.mktemp("nested"))


@pytest.fixture
def nodes(world, tmp_path):
    opened = Nodes(world, tmp_path)
    yield opened
    opened.close()


def exact(nodes, silos, number):
    return sum(nodes.releases[silo, number].values for silo in silos)


@pytest.mark.parametrize("purpose", ["deployment", "research"])
def test_the_model_is_the_sum_of_all_releases_and_the_server_sees_countries_alone(world, tmp_path, purpose):
    plan = world.made(purpose=purpose)
    nodes, expected = Nodes(world, tmp_path, plan), np.zeros(40)
    while not nodes.server.is_finished:
        number = nodes.server.round_number
        summary = nodes.run_round()
        assert summary["summed"] == ["east", "west"]
        assert summary["members"]["east"] == ["a1", "a2", "a3", "b1", "b2", "b3"]
        step = 1.0 if plan.lattice_steps is None else plan.lattice_steps[0]
        expected += exact(nodes, plan.federation.silo_names.tolist(), number) * step
    nodes.close()
    flat = np.concatenate([array.ravel() for array in nodes.server.model.values()])
    assert flat == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_a_server_takes_no_sum_of_an_inner_tier(nodes):
    sums = nodes.gather("a", 1).to_bytes()
    with pytest.raises(ExchangeError, check=coded("plan.region-unknown", region="a")):
        nodes.server.receive(sums, "a")
    with pytest.raises(ExchangeError, check=coded("server.sender-differs")):
        nodes.server.receive(sums, "east")
    assert nodes.server.answers == {}


@pytest.mark.parametrize("name", ["a", "east"])
@pytest.mark.parametrize("stage", ["before", "amid", "stored", "forgotten"])
def test_a_node_that_dies_at_any_stage_answers_the_same_sum_or_none(nodes, name, stage):
    """A node at every tier, killed before its first message, between two messages, and after its sum."""
    senders = sorted(nodes.tree.children(name) or nodes.tree.silos(name))

    def message(sender):
        if nodes.tree.children(name):
            if not nodes.node(sender).is_summed(1):
                nodes.gather(sender, 1)
            return nodes.seal(sender, nodes.node(sender).close_round(1))
        return nodes.sealed_release(sender, 1)

    node = nodes.node(name)
    if stage != "before":
        node.accept(message(senders[0]), 1)
    if stage == "amid":
        assert isinstance(node.close_round(1), Withheld)
    if stage in ("stored", "forgotten"):
        for sender in senders[1:]:
            node.accept(message(sender), 1)
        first = node.close_round(1, forget=stage == "forgotten")
    nodes.restart(name)
    node = nodes.node(name)
    if stage in ("stored", "forgotten"):
        assert node.is_summed(1)
        with pytest.raises(ExchangeError, check=coded("region.release-late")):
            node.accept(message(senders[0]), 1)
        assert node.close_round(1).to_bytes() == first.to_bytes()
    else:
        assert isinstance(node.close_round(1), Withheld)
        for sender in senders:
            node.accept(message(sender), 1)
        first = node.close_round(1)
        assert (first.values == exact(nodes, nodes.tree.silos(name), 1)).all()
    nodes.restart(name)
    assert nodes.node(name).close_round(1).to_bytes() == first.to_bytes()


def test_a_child_has_one_sum_in_a_round_also_after_a_restart(world, nodes, tmp_path):
    """A region that lost its file, or lies, sums its silos anew: the difference would reveal a silo's new noise."""
    nodes.node("east").accept(nodes.seal("a", nodes.gather("a", 1)), 1)
    liar = Nodes(world, tmp_path / "liar")
    second = nodes.seal("a", liar.gather("a", 1))
    liar.close()
    for _ in range(2):
        with pytest.raises(ExchangeError, check=coded("region.release-replaced", silo="a")):
            nodes.node("east").accept(second, 1)
        nodes.restart("east")


def test_a_server_takes_no_second_sum_of_a_node(world, nodes, tmp_path):
    nodes.server.receive(nodes.gather("east", 1).to_bytes(), "east")
    liar = Nodes(world, tmp_path / "liar")
    second = liar.gather("east", 1).to_bytes()
    liar.close()
    with pytest.raises(ExchangeError, check=coded("server.sum-replaced", region="east")):
        nodes.server.receive(second, "east")


def test_a_child_that_leaves_silos_out_is_refused(world, nodes):
    """A country refuses the sum of a region without a silo, and the server the sum of a country without a region."""
    whole = nodes.gather("a", 1)
    silent = nodes.releases["a3", 1].values
    partial = RegionalSum(
        **{name: getattr(whole, name) for name in ("plan_digest", "region", "round_number", "layout", "step")},
        members=("a1", "a2"),
        values=whole.values - silent,
    )
    with pytest.raises(ExchangeError, check=coded("region.child-sum-lacks-noise", child="a")):
        nodes.node("east").accept(nodes.seal("a", partial), 1)
    alone = RegionalSum(
        plan_digest=whole.plan_digest,
        region="east",
        round_number=1,
        members=whole.members,
        layout=LAYOUT,
        values=whole.values,
        step=whole.step,
    )
    with pytest.raises(ExchangeError, check=coded("server.sum-lacks-noise", region="east")):
        nodes.server.receive(alone.to_bytes(), "east")


def test_a_node_that_passes_a_childs_sum_on_as_its_own_is_refused(nodes):
    """The sum of one region in the name of the country, with the names of all silos: the noise of a region is missing.

    The sum has half of the noise's variance. With few parameters no test of norms can tell; names of silos can.
    """
    inner = nodes.gather("a", 1)
    nodes.gather("b", 1)
    renamed = {name: getattr(inner, name) for name in ("plan_digest", "round_number", "layout", "values", "step")}
    with pytest.raises(ExchangeError, check=coded("server.sum-lacks-noise")):
        nodes.server.receive(RegionalSum(**renamed, region="east", members=inner.members).to_bytes(), "east")
    other = nodes.gather("c", 1)
    with pytest.raises(ExchangeError, check=coded("server.silos-foreign")):
        nodes.server.receive(RegionalSum(**renamed, region="east", members=other.members).to_bytes(), "east")


def test_one_childs_sum_under_the_names_of_all_silos_lacks_noise_and_is_refused(world, tmp_path):
    """Two equal regions: half of the noise's variance is missing, which the norm of 2,000 coordinates shows."""
    count = 2_000
    plan = verified_plan(
        fulcrum.plan(
            fulcrum.Federation.from_sizes(SIZES, outer=OUTER),
            rounds=2,
            epsilon=EPSILON,
            parameters=count,
            purpose="deployment",
            keys=world.keys,
        )
    )
    layout = Layout(names=("weight",), shapes=((count,),))
    server = Coordinator.open(tmp_path, plan, {"weight": np.zeros(count)})
    flat = np.full(count, 1.0)
    sums = {
        region: sum(
            _lattice_release(flat, layout, release_parameters_of(plan, silo), 1).values for silo in SIZES[region]
        )
        for region in "ab"
    }
    fields = {"plan_digest": plan.digest, "region": "east", "round_number": 1, "layout": layout}
    fields |= {"step": float(plan.lattice_steps[0]), "members": tuple(sorted([*SIZES["a"], *SIZES["b"]]))}
    for values in (sums["a"], sums["b"]):
        with pytest.raises(ExchangeError, check=coded("server.sum-norm", side="below the noise of its releases")):
            server.receive(RegionalSum(**fields, values=values).to_bytes(), "east")
    server.receive(RegionalSum(**fields, values=sums["a"] + sums["b"]).to_bytes(), "east")
    assert list(server.answers) == ["east"]


def sum_like(honest, values):
    fields = {name: getattr(honest, name) for name in ("plan_digest", "region", "round_number", "layout", "step")}
    return RegionalSum(**fields, members=honest.members, values=values)


def test_a_childs_sum_at_the_edge_of_honest_norms_is_summed(nodes):
    """The server sees which sums count: a test of one region's sum would tell about a sum that the server never sees."""
    sums = {region: nodes.gather(region, 1) for region in "ab"}
    wrong = np.zeros(40, dtype=np.int64)
    wrong[0] = 1.2 * largest_sum(nodes.plan, list(nodes.tree.silos("a").values()), 40)
    node = nodes.node("east")
    assert node.accept(nodes.seal("a", sum_like(sums["a"], wrong)), 1) == "a"
    node.accept(nodes.seal("b", sums["b"]), 1)
    total = node.close_round(1)
    assert (total.values == wrong + sums["b"].values).all()
    nodes.server.receive(total.to_bytes(), "east")
    assert list(nodes.server.answers) == ["east"]


@pytest.mark.parametrize("value", [0, 2**40, 2**62, 2**63 - 1, -(2**63)])
def test_a_total_without_honest_noise_is_withheld_and_no_child_is_named(nodes, value):
    node, sums = nodes.node("east"), {region: nodes.gather(region, 1) for region in "ab"}
    for region, honest in sums.items():
        values = np.full(40, value) if region == "a" or not value else honest.values
        assert node.accept(nodes.seal(region, sum_like(honest, values)), 1) == region
    reply = node.close_round(1)
    assert (reply.missing, reply.reason) == ((), "the norm of the total is not the norm of honest sums")
    nodes.restart("east")
    assert nodes.node("east").close_round(1) == reply
    assert not nodes.node("east").is_summed(1)
    nodes.server.receive(reply.to_bytes(), "east")


def test_a_total_is_added_up_modulo_two_to_the_64th(nodes):
    """A total modulo 2^64 follows from the total, so that an overflow tells nothing more than the total does."""
    node, sums = nodes.node("east"), {region: nodes.gather(region, 1) for region in "ab"}
    shifted = {"a": sums["a"].values + np.int64(2**62), "b": sums["b"].values + np.int64(2**62)}
    for region, values in shifted.items():
        node.accept(nodes.seal(region, sum_like(sums[region], values)), 1)
    assert "norm of the total" in node.close_round(1).reason
    far = nodes.node("west")
    for region, offset in (("c", 2**63 - 1), ("d", -(2**63) + 1)):
        honest = nodes.gather(region, 1)
        far.accept(nodes.seal(region, sum_like(honest, honest.values + np.int64(offset))), 1)
    assert (far.close_round(1).values == exact(nodes, nodes.tree.silos("west"), 1)).all()


def test_a_node_whose_total_the_server_does_not_see_tests_no_norm(world, tmp_path):
    outer = {**OUTER, "continent": {"europe": ["east", "west"]}}
    keys = {**world.keys, "europe": new_key(tmp_path / "europe", "sealing")}
    federation = fulcrum.Federation.from_sizes(SIZES, outer=outer)
    plan = fulcrum.plan(
        federation, rounds=1, epsilon={"continent": 2.0}, parameters=40, purpose="deployment", keys=keys
    )
    plan = verified_plan(plan)
    aggregation = aggregation_of(plan)
    east = intake_of(plan, aggregation, "east", world.folder / "east")
    europe = intake_of(plan, aggregation, "europe", tmp_path / "europe")
    quiet, silos = np.zeros(40, dtype=np.int64), list(aggregation.tree.silos("east"))
    assert east.fault_of(quiet, silos, 1) is None
    assert europe.fault_of(quiet, silos, 1)
    assert east.fault_of(np.full(40, np.inf), silos, 1)


def test_a_child_withholds_for_its_own_silos_alone(nodes):
    reply = Withheld(plan_digest=nodes.plan.digest, region="a", round_number=1, missing=("b1",), reason="none")
    with pytest.raises(ExchangeError, check=coded("region.child-sum-silos", child="a")):
        nodes.node("east").accept(nodes.seal("a", reply), 1)


def test_only_the_parent_opens_a_sum_and_only_the_child_makes_one(world, nodes):
    reply = nodes.gather("a", 1)
    sealed = nodes.seal("a", reply)
    assert reply.values[:3].tobytes() not in sealed
    key = world.folder
    with pytest.raises(ExchangeError, check=coded("seal.sum-foreign", node="west")):
        SumOpener(nodes.plan, "west", key / "west").open(sealed)
    # A neighbour, a silo, the parent of another country: none makes a message in the name of the region.
    for other in ("b", "c", "west"):
        with pytest.raises(ExchangeError, check=coded("key.not-of-plan", name="a")):
            SumSealer(nodes.plan, "a", key / other)
    forged = SumSealer(nodes.plan, "b", key / "b").seal(reply.to_bytes(), 1)
    with pytest.raises(ExchangeError, check=coded("seal.sum-content-foreign", child="b")):
        SumOpener(nodes.plan, "east", key / "east").open(forged)
    with pytest.raises(ExchangeError, check=coded("seal.parent-missing", node="east")):
        SumSealer(nodes.plan, "east", key / "east")


def test_every_changed_envelope_is_refused(world, nodes):
    """Any field and any byte: a carrier between the tiers can lose messages, and nothing else."""
    from fulcrum.aggregation.sum_sealing import _Envelope

    opener = SumOpener(nodes.plan, "east", world.folder / "east")
    sealed = nodes.seal("a", nodes.gather("a", 1))
    header, payload = unframe(sealed, _Envelope, "an envelope")
    assert opener.open(sealed)[0] == "a"
    for change in (
        {"child": "b"},
        {"child": "c"},
        {"parent": "west"},
        {"round_number": 2},
        {"plan_digest": "0" * 64},
        {"proof": b""},
        {"proof": bytes(32)},
    ):
        with pytest.raises(ExchangeError):
            opener.open(frame(msgspec.structs.replace(header, **change), payload))
    for place in {0, 5, len(sealed) // 2, len(sealed) - 1}:
        broken = bytearray(sealed)
        broken[place] ^= 1
        with pytest.raises(ExchangeError):
            opener.open(bytes(broken))
    for junk in (b"", sealed[:-1], sealed + b"x", b"junk", None):
        with pytest.raises(ExchangeError):
            opener.open(junk)


def test_a_sum_of_another_round_or_plan_does_not_enter(world, nodes):
    sealed = nodes.seal("a", nodes.gather("a", 1))
    with pytest.raises(ExchangeError, check=coded("region.release-other-round", silo="a")):
        nodes.node("east").accept(sealed, 2)
    other = world.made(rounds=3)
    with pytest.raises(ExchangeError, check=coded("seal.sum-foreign")):
        SumOpener(other, "east", world.folder / "east").open(sealed)


def test_an_aggregator_of_an_inner_tier_cannot_swap_its_file_or_its_place(world, nodes, tmp_path):
    with pytest.raises(ExchangeError, check=coded("key.not-of-plan", name="east")):
        Region.open(tmp_path / "x.db", nodes.plan, "east", world.folder / "a")
    nodes.gather("a", 1)
    nodes.restart("a")
    with pytest.raises(ExchangeError, check=coded("region.file-foreign", region="east")):
        Region.open(tmp_path / "a.db", nodes.plan, "east", world.folder / "east")
    with pytest.raises(StorageError):
        Region.open(tmp_path / "gone.db", nodes.plan, "east", world.folder / "east", create=False)


def test_a_damaged_sum_of_a_child_is_not_added(nodes, tmp_path):
    nodes.gather("east", 1)
    node = nodes.node("east")
    node.accept(nodes.seal("a", nodes.gather("a", 2)), 2)
    nodes.restart("east")
    with sqlite3.connect(tmp_path / "east.db") as connection:
        connection.execute("UPDATE release SET bytes = zeroblob(length(bytes)) WHERE round = 2")
    with pytest.raises(StorageError, check=coded("region.release-damaged", silo="a")):
        nodes.node("east").close_round(2)


def test_the_content_of_childrens_sums_is_erased_and_their_digests_stay(nodes, tmp_path):
    nodes.gather("east", 1)
    nodes.restart("east")
    with sqlite3.connect(tmp_path / "east.db") as connection:
        rows = connection.execute("SELECT silo, bytes, length(digest) FROM release").fetchall()
    assert rows == [("a", None, 64), ("b", None, 64)]


def test_a_child_that_withholds_its_sum_is_heard_and_not_summed(nodes):
    node = nodes.node("east")
    node.accept(nodes.seal("a", nodes.gather("a", 1)), 1)
    reply = nodes.gather("b", 1, gone={"b2"})
    assert isinstance(reply, Withheld)
    assert node.accept(nodes.seal("b", reply), 1) == "b"
    assert node.checked_decline(nodes.seal("b", reply), 1) == "b"
    with pytest.raises(ExchangeError, check=coded("region.decline-other-round", silo="b")):
        node.accept(nodes.seal("b", reply), 2)
    answer = node.close_round(1)
    assert isinstance(answer, Withheld)
    assert answer.missing == ("b1", "b2", "b3")
    assert "1 of 2 sums are missing, such as the sum of 'b'" in answer.reason
    node.accept(nodes.seal("b", nodes.gather("b", 1)), 1)  # the silo is back: the region sums later
    assert isinstance(node.close_round(1), RegionalSum)
    end = StageEnd(plan_digest=nodes.plan.digest, round_number=2, attempt=1, stage="keys", region="a")
    with pytest.raises(ExchangeError, check=coded("region.message-unexpected", child="a")):
        node.accept(SumSealer(nodes.plan, "a", nodes.world.folder / "a").seal(end.to_bytes(), 2), 2)


def test_a_missing_silo_within_the_dropouts_passes_every_tier(world, tmp_path):
    nodes = Nodes(world, tmp_path, world.made(dropouts=1))
    summary = nodes.run_round(gone={"a2", "d1"})
    nodes.close()
    assert summary["members"]["east"] == ["a1", "a3", "b1", "b2", "b3"]
    assert summary["members"]["west"] == ["c1", "c2", "c3", "d2", "d3"]


PLANS = {
    "regions alone": ({"region": 3.0}, [("a",), ("b",), ("a", "b")], False),
    "a target on the country": ({"region": 3.0, "country": 1.0}, [("a", "b")], False),
    "a target on the federation": ({"region": 3.0, "country": 2.0, "federation": 1.0}, [("a", "b")], True),
}
"""By case: the targets, the regions whose sums may make a country's sum, and True if countries count together."""


@pytest.mark.parametrize("case", PLANS)
@pytest.mark.parametrize("kind", ["trusted", "masked"])
def test_an_outer_sum_has_the_noise_that_every_observer_of_the_plan_is_promised(world, case, kind):
    """Every set of whole regions and every missing silo; the oracle adds up the noise, and knows no rule."""
    epsilon, expected, together = PLANS[case]
    plan = fulcrum.verified_plan(
        fulcrum.plan(
            fulcrum.Federation.from_sizes(SIZES, outer=OUTER),
            rounds=2,
            epsilon=epsilon,
            parameters=40,
            purpose="deployment",
            keys=world.keys,
            aggregation=kind,
        )
    )
    aggregation, variance = aggregation_of(plan), plan.noise_variance
    promised = np.asarray(effective_multiplier(plan, "country")) * plan.federation.weights
    allowed = []
    for size in range(3):
        for regions in itertools.combinations("ab", size):
            present = {silo for region in regions for silo in SIZES[region]}
            if aggregation.lacking("east", present) is None:
                allowed.append(regions)
                rows = [index for silo, index in aggregation.tree.silos("east").items() if silo in present]
                assert (np.sqrt(variance[rows].sum()) >= promised[rows] * (1 - 1e-9)).all()
    assert allowed == expected
    whole = {silo for region in "ab" for silo in SIZES[region]}
    assert aggregation.lacking("east", whole - {"b3"})
    apart = {frozenset({"east"}), frozenset({"west"})}
    assert set(aggregation.joint_senders()) == ({frozenset({"east", "west"})} if together else apart)


def test_nodes_need_names_and_keys_of_their_own(world, tmp_path):
    twice = fulcrum.Federation.from_sizes({"a": [10, 10]}, outer={"country": {"a": ["a"]}})
    with pytest.raises(ExchangeError, check=coded("plan.node-repeated", name="a")):
        tree_of(fulcrum.plan(twice, rounds=1, epsilon=1.0))
    keyless = {name: key for name, key in world.keys.items() if name != "b"}
    plan = fulcrum.verified_plan(
        fulcrum.plan(fulcrum.Federation.from_sizes(SIZES, outer=OUTER), rounds=1, epsilon=1.0, keys=keyless)
    )
    with pytest.raises(ExchangeError, check=coded("plan.key-missing", name="b")):
        Region.open(tmp_path / "east.db", plan, "east", world.folder / "east")


def same_key(text):
    """The same X25519 key with the highest bit set, which the function ignores."""
    raw = bytearray(base64.b64decode(text.removeprefix("x25519:")))
    raw[31] ^= 0x80
    return "x25519:" + base64.b64encode(raw).decode()


@pytest.mark.parametrize("spelt", [str, same_key])
@pytest.mark.parametrize("pair", [("a", "b"), ("a", "east"), ("a", "c"), ("a", "west"), ("east", "west")])
def test_every_site_refuses_a_plan_with_one_key_for_two_aggregators(world, tmp_path, pair, spelt):
    keys = {**world.keys, pair[0]: spelt(world.keys[pair[1]])}
    plan = fulcrum.plan(fulcrum.Federation.from_sizes(SIZES, outer=OUTER), rounds=1, epsilon=1.0, keys=keys)
    plan = verified_plan(plan)
    with pytest.raises(ExchangeError, check=coded("seal.nodes-share-key")):
        Region.open(tmp_path / "west.db", plan, "west", world.folder / "west")
    with pytest.raises(ExchangeError, check=coded("seal.nodes-share-key")):
        SumSealer(plan, "d", world.folder / "d")


@pytest.mark.parametrize(
    ("sizes", "outer"),
    [({"a": [10]}, {"country": {"federation": ["a"]}}), ({"federation": [10]}, {"country": {"x": ["federation"]}})],
)
def test_no_node_of_a_tree_has_the_name_of_the_root(sizes, outer):
    """The regions of a country with that name would report to the server, each sum unsealed."""
    with pytest.raises(FederationError, check=coded("federation.node-reserved", name="federation")):
        fulcrum.Federation.from_sizes(sizes, outer=outer)
    alone = fulcrum.Federation.from_sizes({"federation": [10, 10]})  # one tier: plans in force may have the name
    assert fulcrum.verified_plan(fulcrum.plan(alone, rounds=1, epsilon=1.0)).federation.innermost.nodes == (
        "federation",
    )


def test_a_checkpoint_without_aggregators_is_read_by_its_regions(tmp_path):
    """A region with its country's name has no site of its own on Flower, and stops no run there."""
    federation = fulcrum.Federation.from_sizes(
        {"a": [10, 10, 10], "b": [10, 10, 10]}, outer={"country": {"a": ["a", "b"]}}
    )
    keys = {name: fulcrum.new_key(tmp_path / name) for name in federation.silo_names.tolist()}
    given = {"rounds": 1, "epsilon": {"region": 3.0}, "aggregation": "masked", "keys": keys}
    plan = fulcrum.verified_plan(fulcrum.plan(federation, **given))
    for _ in range(2):  # the second reads the checkpoint of the first
        assert Coordinator.open(tmp_path / "server", plan, START, logical=True).round_number == 1
    assert Coordinator.read(tmp_path / "server", plan, logical=True).round_number == 1
    with pytest.raises(ExchangeError, check=coded("plan.node-repeated", name="a")):
        Coordinator.read(tmp_path / "server", plan)


def test_a_server_that_pools_reads_the_sums_of_regions(world, tmp_path):
    """The plan counts every observer above the regions as a reader of regional sums, whatever tiers there are."""
    plan = fulcrum.verified_plan(
        fulcrum.plan(
            fulcrum.Federation.from_sizes(SIZES, outer=OUTER),
            rounds=1,
            epsilon={"region": 3.0},
            recipe="joint",
            parameters=40,
            purpose="deployment",
            keys=world.keys,
        )
    )
    assert tree_of(plan).reporting == tuple("abcd")
    content = plan.content()
    assert all(entry.epsilon["country"] == entry.epsilon["region"] <= 3.0 for entry in content.silos)
    nodes = Nodes(world, tmp_path, plan)
    assert nodes.run_round()["summed"] == list("abcd")
    nodes.close()


def test_masked_sums_need_a_plan_without_targets_on_outer_tiers(world, tmp_path):
    federation = fulcrum.Federation.from_sizes(SIZES, outer=OUTER)
    hidden, open_plan, one_group = (
        fulcrum.verified_plan(
            fulcrum.plan(federation, rounds=1, epsilon=epsilon, aggregation="masked", keys=world.keys)
        )
        for epsilon in ({"region": 3.0, "country": 2.0}, {"region": 3.0, "federation": 2.0}, {"federation": 2.0})
    )
    assert unmet_tiers(hidden) == ("country",)
    assert unmet_tiers(open_plan) == unmet_tiers(one_group) == ()
    with pytest.raises(ExchangeError, check=coded("plan.tiers-unmet", tiers="country")):
        fulcrum.MaskedRound(hidden, 1, START)
    with pytest.raises(ExchangeError, check=coded("plan.tiers-unmet", tiers="country")):
        Coordinator.open(tmp_path / "hidden", hidden, START, logical=True)
    assert not (tmp_path / "hidden").exists()
    assert set(fulcrum.MaskedRound(open_plan, 1, START).requests()) == set(open_plan.federation.silo_names.tolist())
    assert fulcrum.MaskedRound(one_group, 1, START).missing == set(open_plan.federation.silo_names.tolist())
