"""One masked group with the joint recipe: a target on the federation alone, and the server reads one sum."""

import base64

import msgspec
import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.core.plan.plan_file import Spectrum
from fulcrum.errors import UnreachableTargetError
from fulcrum.planning.inputs.server_settings import FactsOfPlan
from fulcrum.rules.server_rule import RoundSums
from fulcrum.server.coordinator import Coordinator
from fulcrum.simulation.embedded.server_variants import Servers
from fulcrum.words.recipe_words import recipe_name, recipe_words
from fulcrum.words.reproduction import reproducing_commands

UNEQUAL = fulcrum.Federation.from_sizes({"north": [400, 50, 50, 80], "south": [300, 20], "west": [70, 70, 90]})
GROUP = {"rounds": 4, "epsilon": {"federation": 1.0}, "aggregation": "masked", "recipe": "joint", "parameters": 40}


def failing(content):
    return {check.name for check in fulcrum.verify(content) if not check.holds}


@pytest.mark.parametrize(
    "options", [{}, {"colluders": 1}, {"purpose": "deployment"}, {"least_influence": 0.9}], ids=str
)
def test_a_target_on_the_federation_alone_is_planned_as_one_group_and_verifies(options, tmp_path):
    plan = fulcrum.plan(UNEQUAL, **GROUP, **options)
    fulcrum.save_plan(plan, tmp_path / "plan.json")
    read = fulcrum.read_plan(tmp_path / "plan.json")
    assert read.one_group
    assert read.server == "random-effects"
    assert read.worst_epsilon("federation") <= 1.0 + 1e-9
    assert read.epsilon("region") == pytest.approx(read.epsilon("federation"))
    assert recipe_name(read) == "joint"
    assert any("global sum" in sentence for sentence in recipe_words(read))
    assert read.influence.sum() == pytest.approx(1)
    again = fulcrum.read_plan(tmp_path / "plan.json")
    assert "--aggregation masked" in reproducing_commands(again)[0]


def test_equal_silos_need_the_noise_of_one_region_and_no_more():
    # theory: with R = 1 the least noise is (q C)² / m², and the clip is 1 / (1 + d v)
    plan = fulcrum.plan(UNEQUAL, **GROUP)
    assert plan.weights == pytest.approx(np.full(9, 1 / 9))
    required = plan.required_multiplier["federation"]
    assert plan.noise_budget == pytest.approx(required**2 / 81, rel=1e-9)
    assert plan.model_noise == pytest.approx(plan.noise_budget)
    assert plan.clip_share == pytest.approx(1 / (1 + 40 * required**2 / 81), rel=1e-9)
    facts = FactsOfPlan(plan=plan)
    assert (facts.shares.tolist(), facts.weight.tolist()) == ([1.0], pytest.approx([1.0]))
    assert facts.variance == pytest.approx([plan.noise_budget])


def test_least_influence_is_kept_by_the_weights_where_the_server_sees_no_region():
    plan = fulcrum.plan(UNEQUAL, **GROUP, least_influence=0.9)
    sizes = np.array([580, 320, 230]) / 1130
    assert (plan.node_influence("region") / sizes).min() == pytest.approx(0.9)
    content = plan.content()
    settings = msgspec.structs.replace(content.settings, least_influence=0.95)
    assert "weights" in failing(msgspec.structs.replace(content, settings=settings, digest=""))


@pytest.mark.parametrize(
    "changes",
    [
        {"aggregation": "trusted"},
        {"epsilon": {"federation": 1.0, "region": 3.0}},
    ],
    ids=str,
)
def test_a_server_that_would_read_regional_sums_is_still_refused(changes):
    with pytest.raises(UnreachableTargetError, check=coded("plan.server-reveals-sums")):
        fulcrum.plan(UNEQUAL, **(GROUP | changes))


def test_a_forged_plan_that_reads_regional_sums_fails():
    content = fulcrum.plan(UNEQUAL, **GROUP).content()
    settings = msgspec.structs.replace(content.settings, aggregation="trusted")
    assert "server" in failing(msgspec.structs.replace(content, settings=settings, digest=""))


def test_the_embedded_engine_gives_the_rule_the_global_sum_beside_rules_that_read_regions():
    group = fulcrum.plan(UNEQUAL, **GROUP)
    regions = fulcrum.plan(UNEQUAL, **(GROUP | {"epsilon": 1.0}))
    sums = 0.1 * np.random.default_rng(2).normal(size=(3, 20, 2, 2))
    moved = Servers([regions.server_rule, group.server_rule], (20, 2), classes=2).advance(np.zeros((20, 2, 2)), sums)
    rule = group.server_rule
    told = RoundSums(values=sums[..., 1].sum(axis=0)[None], present=np.ones(1, dtype=bool), classes=2)
    alone = rule.step(rule.begin(np.zeros((20, 2))), told)[0].model
    assert moved[..., 1] == pytest.approx(alone, abs=1e-12)
    assert np.abs(alone).max() > 0


def test_a_coordinator_takes_the_one_sum_and_resumes_on_the_same_bits(tmp_path):
    public = Spectrum(variances=np.geomspace(3, 0.1, 19).tolist(), origin="public", source="public.npz")
    names = UNEQUAL.silo_names.tolist()
    keys = {name: base64.b64encode(bytes([place]) * 32).decode() for place, name in enumerate(names, 1)}
    plan = fulcrum.verified_plan(fulcrum.plan(UNEQUAL, **GROUP, public=public, keys=keys))
    start = {"head": np.zeros((20, 2))}
    stream = np.random.default_rng(4)
    values = [0.3 * stream.normal(size=40) for _ in range(2)]
    digests = []
    for folder, reopens in ((tmp_path / "one", False), (tmp_path / "two", True)):
        server = Coordinator.open(folder, plan, start, classes=2)
        for number, row in enumerate(values, 1):
            if reopens:
                server = Coordinator.open(folder, plan, start, classes=2)
            answer = fulcrum.RegionalSum(
                plan_digest=plan.digest,
                region="federation",
                round_number=number,
                members=tuple(sorted(names)),
                layout=server._standing.layout,
                values=row,
                step=None,
            )
            server.receive(answer.to_bytes(), "federation")
            server.finish_round()
        digests.append(server.model_digest)
    assert digests[0] == digests[1]
    assert np.abs(server.model["head"]).max() > 0


def test_a_comparison_of_masked_plans_has_the_joint_group():
    rows = fulcrum.compare(UNEQUAL, rounds=4, epsilon=1.0, aggregation="masked", parameters=40)
    by_name = {row.allocation: row for row in rows}
    assert by_name["joint, one group"].noise_budget < by_name["one masked group"].noise_budget
    assert by_name["joint, one group"].noise_budget < by_name["joint"].noise_budget
