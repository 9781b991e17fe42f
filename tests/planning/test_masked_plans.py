"""Plans for masked sums: whom the observer inside then is, in figures, words, file, checks and policies."""

import base64
import itertools
import json
import math

import msgspec
import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.core.plan.plan_file import content_digest
from fulcrum.core.silo.policy import Policy
from fulcrum.errors import ParameterError, PlanError, UnreachableTargetError
from fulcrum.planning.content.plan_figures import with_uniform_noise
from fulcrum.planning.theory.calibration import epsilon_of
from fulcrum.rounding import display_epsilon
from fulcrum.words.reproduction import reproducing_commands

SIZES = {"north": {"caen": 100, "lille": 300, "metz": 200, "nancy": 150}, "south": {"lyon": 400}}


def made(sizes="severe", *, epsilon=1.0, **options):
    federation = sizes if isinstance(sizes, str) else fulcrum.Federation.from_sizes(sizes)
    return fulcrum.plan(federation, rounds=10, epsilon=epsilon, **{"aggregation": "masked"} | options)


def holds(plan):
    return [check.name for check in fulcrum.verify(plan) if not check.holds] == []


def test_a_plan_that_says_nothing_of_aggregation_is_trusted_and_its_file_unchanged():
    plain, said = fulcrum.plan("severe", rounds=10, epsilon=1.0), made(aggregation="trusted")
    assert plain.digest == said.digest
    assert "aggregation" not in json.loads(msgspec.json.encode(plain.content()))["settings"]
    assert made().digest != plain.digest
    assert json.loads(msgspec.json.encode(made().content()))["settings"]["aggregation"] == "masked"


@pytest.mark.parametrize(("colluders", "dropouts"), [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)])
def test_inside_is_the_server_with_one_silo_of_the_region_at_least(colluders, dropouts):
    """By hand: the noise of the region, less that of the heaviest others that collude or are missing."""
    sizes = {"north": {f"n{place}": size for place, size in enumerate((100, 300, 200, 150, 80, 90, 70))}}
    plan = made(sizes, colluders=colluders, dropouts=dropouts)
    weight, noise = plan.weights, (plan.weights * plan.noise_multiplier) ** 2
    gone = max(1, colluders) + dropouts
    for silo in range(7):
        others = sorted(np.delete(noise, silo))[: 6 - gone]
        left = noise[silo] + sum(others)
        expected = epsilon_of(float(np.sqrt(left) / weight[silo]), rounds=10, delta=1e-5, accountant="exact")
        assert plan.epsilon_inside[silo] == pytest.approx(expected, rel=1e-9)
    assert (plan.epsilon_inside >= plan.epsilon_above * (1 - 1e-12)).all()
    assert (plan.epsilon_inside == plan.epsilon_above).all() == (colluders >= 1)
    assert holds(plan)


@pytest.mark.parametrize("tier", ["region", "federation"])
@pytest.mark.parametrize("options", [{}, {"weights": "equal"}, {"weights": "least-noise"}, {"allocation": "size"}])
@pytest.mark.parametrize(("colluders", "dropouts"), [(0, 0), (2, 0), (1, 1)])
def test_no_coalition_meets_less_noise_than_the_plan_says(tier, options, colluders, dropouts):
    """By trying them all: every choice of so many others of each region, colluding or missing."""
    sizes = {"north": (100, 900, 50, 300, 20), "south": (400, 30, 70, 500), "west": (60, 60, 800, 10)}
    plan = made(sizes, epsilon={tier: 1.0}, colluders=colluders, dropouts=dropouts, **options)
    weight, noise, place = plan.weights, plan.noise_variance, plan.federation.innermost.parent_of
    for tried, epsilon in (
        (colluders + dropouts, plan.epsilon_above),
        (max(1, colluders) + dropouts, plan.epsilon_inside),
    ):
        for silo in (0, 1, 5, 8, 12):
            group = [other for other in range(13) if tier == "federation" or place[other] == place[silo]]
            regions = [[one for one in group if place[one] == region and one != silo] for region in range(3)]
            coalitions = itertools.product(*(itertools.combinations(one, min(tried, len(one))) for one in regions))
            least = min(
                math.fsum(noise[one] for one in group if not any(one in part for part in parts)) for parts in coalitions
            )
            expected = epsilon_of(math.sqrt(least) / weight[silo], rounds=10, delta=1e-5, accountant=plan.accountant)
            assert epsilon[silo] == pytest.approx(expected, rel=1e-6)
    assert holds(plan)


def test_masking_leaves_the_noise_as_it_was_and_takes_the_curious_aggregator_away():
    masked, trusted = made(), made(aggregation="trusted")
    assert (masked.noise_multiplier == trusted.noise_multiplier).all()
    assert (masked.epsilon_above == trusted.epsilon_above).all()
    assert trusted.worst_epsilon("silo") > 10
    assert masked.worst_epsilon("silo") < 1.2


@pytest.mark.parametrize(
    "target", [{"server+silo": 1.05}, {"region": 1.0, "server+silo": 1.05}, {"region": 3.0, "server+silo": 1.0}]
)
@pytest.mark.parametrize("options", [{}, {"colluders": 2}, {"dropouts": 1}, {"recipe": "joint", "parameters": 66}])
@pytest.mark.parametrize("allocation", ["optimal", "uniform", "size"])
def test_a_target_inside_is_met_against_the_server_and_its_silos(target, options, allocation):
    plan = made(epsilon=target, allocation=allocation, **options)
    for tier, promised in plan.epsilon_target.items():
        assert plan.worst_epsilon(tier) <= promised * (1 + 1e-9)
    assert any(plan.worst_epsilon(tier) > 0.9 * promised for tier, promised in plan.epsilon_target.items())
    assert holds(plan)
    seen = {"aggregator" if name == "server+silo" else name: promised for name, promised in target.items()}
    assert plan.noise_budget < made(epsilon=seen, aggregation="trusted", **options).noise_budget


def test_a_silo_alone_in_its_region_is_seen_by_the_server():
    plan = made(SIZES)
    alone = plan.federation.silo_names.tolist().index("lyon")
    assert plan.epsilon_inside[alone] == plan.epsilon_above[alone] == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize(
    ("sizes", "epsilon", "whose"),
    [(SIZES, 1.0, "a region"), ({"north": {"caen": 100}}, {"federation": 1.0}, "the federation")],
)
def test_a_plan_never_says_that_nobody_sees_the_update_of_a_silo_that_is_alone(sizes, epsilon, whose):
    """The sum of one silo is its update, with its own noise alone, masked or not."""
    plan = made(sizes, epsilon=epsilon)
    trusted = made(sizes, epsilon=epsilon, aggregation="trusted")
    assert plan.epsilon_above[-1] == trusted.epsilon_inside[-1], "the server meets what an aggregator would"
    assert "no one sees" not in fulcrum.guarantee_of(plan).assumptions[-2]
    assert (
        fulcrum.guarantee_of(plan)
        .assumptions[-2]
        .endswith(f"; the sum of {whose} of one silo is that silo's own update")
    )
    assert holds(plan)
    assert "of one silo" not in fulcrum.guarantee_of(made()).assumptions[-2]


def test_a_plan_never_says_that_the_server_reads_no_sum_of_a_region_that_is_alone_in_its_country():
    """The sum of italy, which italy sends to the server, is the sum of lombardy."""
    sizes = {region: [100] * 4 for region in ("north", "south", "lombardy")}
    outer = {"country": {"france": ["north", "south"], "italy": ["lombardy"]}}
    federation = fulcrum.Federation.from_sizes(sizes, outer=outer)
    plan = fulcrum.plan(federation, rounds=10, epsilon={"region": 4.0, "country": 2.0}, aggregation="masked")
    sums = "and the server reads no sum but those of aggregators further out"
    assert any(sums in line for line in fulcrum.guarantee_of(plan).assumptions)
    assert not any("no sum of a region" in line for line in fulcrum.guarantee_of(plan).assumptions)
    alone = [entry.epsilon for entry in plan.content().silos if entry.silo.startswith("lombardy")]
    assert all(epsilon["region"] == pytest.approx(epsilon["country"]) for epsilon in alone)
    assert holds(plan)


def test_a_federation_masked_as_one_group_has_the_noise_of_one_sum():
    plan = made(epsilon={"federation": 1.0})
    assert plan.group_tier == "federation"
    assert plan.worst_epsilon("federation") == plan.worst_epsilon("region") <= 1
    assert plan.noise_budget < made().noise_budget / 4
    assert holds(plan)
    assert "who sees the global sum, the one sum that is not masked" in fulcrum.guarantee_of(plan).statement
    assert "together with 1 silo of each region" in fulcrum.guarantee_of(plan).statement
    assert "the server gets the global sum alone" in fulcrum.guarantee_of(plan).assumptions[-2]


def test_words_name_the_server_and_its_silos_and_no_aggregator():
    plan = made(SIZES, colluders=2)
    assert "against the server together with 2 silos of its region" in fulcrum.guarantee_of(plan).statement
    assert "the server together with 1 silo of its region" in fulcrum.guarantee_of(made()).statement
    told = " ".join([fulcrum.guarantee_of(plan).statement, *fulcrum.guarantee_of(plan).assumptions])
    assert "aggregator" not in told
    assert (
        "sums are masked: the server gets the sum of each region from masked updates"
        in fulcrum.guarantee_of(plan).assumptions[-2]
    )
    changed = msgspec.structs.replace(plan.content(), digest="")
    settings = msgspec.structs.replace(changed.settings, aggregation="trusted")
    said = {check.name: check.holds for check in fulcrum.verify(msgspec.structs.replace(changed, settings=settings))}
    assert not said["words"]
    assert not said["worst epsilon inside"]


@pytest.mark.parametrize("tier", ["region", "federation"])
def test_silos_that_help_the_server_are_the_colluders_and_not_others_beside_them(tier):
    """By counting: the epsilon against the server is that with `colluders` silos gone, and not with twice as many."""
    plan = made("severe", epsilon={tier: 1.0}, colluders=2)
    assert plan.worst_epsilon("silo") == pytest.approx(plan.epsilon(tier, colluders=2).max(), rel=1e-9)
    assert plan.epsilon(tier, colluders=4).max() > 1.01 * plan.worst_epsilon("silo")
    said = "even if up to 2 silos of each region collude (silos that help the server are counted in this number)."
    assert fulcrum.guarantee_of(plan).statement.endswith(said)
    assert "collude." in fulcrum.guarantee_of(fulcrum.plan("severe", rounds=10, epsilon=1.0, colluders=2)).statement


@pytest.mark.parametrize("purpose", ["research", "deployment"])
def test_a_masked_plan_is_read_as_it_was_written(tmp_path, purpose):
    plan = made(SIZES, epsilon={"region": 1.0, "server+silo": 1.1}, purpose=purpose, parameters=40, dropouts=1)
    fulcrum.save_plan(plan, tmp_path / "plan.json")
    read = fulcrum.read_plan(tmp_path / "plan.json")
    assert read.aggregation == "masked"
    assert read.digest == plan.digest
    assert (read.epsilon_inside == plan.epsilon_inside).all()
    assert (with_uniform_noise(read).noise_multiplier == with_uniform_noise(plan).noise_multiplier).all()
    assert holds(tmp_path / "plan.json")


def test_masking_goes_with_noise_that_silos_draw():
    with pytest.raises(ParameterError, check=coded("plan.masked-injection")):
        made(injection="aggregator")
    with pytest.raises(ParameterError, check=coded("errors.name-unknown", noun="aggregation", name="maskd")):
        made(aggregation="maskd")


def test_a_group_that_cannot_lose_the_plans_dropouts_is_refused_when_it_is_planned():
    three = {"north": {"caen": 100, "lille": 300, "metz": 200}}
    assert holds(made(three))
    with pytest.raises(
        UnreachableTargetError, check=coded("plan.group-too-small", group="north", silos=3, dropouts=1, colluders=1)
    ):
        made(three, dropouts=1)
    assert holds(made(SIZES, dropouts=1)), "four can lose one; who is alone is there or there is no sum"
    with pytest.raises(UnreachableTargetError, check=coded("plan.group-too-small", group="federation", silos=5)):
        made(SIZES, epsilon={"federation": 1.0}, dropouts=1)


def test_a_plan_in_which_two_silos_have_one_key_is_refused_where_sums_are_masked():
    """Whoever holds it would count as two members, of whom the plan counts one."""
    one, two, three = (base64.b64encode(bytes([number] * 32)).decode() for number in (1, 2, 3))
    keys = {"caen": one, "lille": two, "lyon": one}
    with pytest.raises(ParameterError, check=coded("plan.mask-key-shared", silo="caen", other_silo="lyon")):
        made(SIZES, keys=keys)
    assert masking_of(keys) == "silos 'caen' and 'lyon' have one key"
    assert holds(made(SIZES, keys=keys | {"lyon": three}))


KEY = "AQQB" * 10 + "AQQ="


@pytest.mark.parametrize("text", [KEY[:-2] + "R=", KEY[:-1], f" {KEY}", f"{KEY}\n", "AQE=", f"x25519:{KEY}", "", "ü"])
def test_a_silo_whose_key_is_no_key_or_in_another_spelling_is_refused_where_sums_are_masked(text):
    """Base64 ignores two bits of its last letter, so that one key in four spellings would count as four silos."""
    keys = {"caen": KEY, "lyon": text}
    with pytest.raises(ParameterError, check=coded("plan.mask-key-invalid", silo="lyon")):
        made(SIZES, keys=keys)
    assert masking_of(keys) == "the key of silo 'lyon' is not 32 bytes in base64"
    fulcrum.plan(fulcrum.Federation.from_sizes(SIZES), rounds=10, epsilon=1.0, keys=keys)


def masking_of(keys):
    """The detail of the one check that fails for a forged plan with these keys."""
    forged = msgspec.structs.replace(made(SIZES).content(), keys=keys, digest="")
    [failed] = [check for check in fulcrum.verify(forged) if not check.holds]
    assert failed.name == "masking"
    return failed.detail


def test_a_file_whose_groups_cannot_be_masked_or_of_no_known_aggregation_does_not_pass(tmp_path):
    content = fulcrum.plan(fulcrum.Federation.from_sizes({"north": [100, 100, 100]}), rounds=1, epsilon=1.0, dropouts=1)
    settings = msgspec.structs.replace(content.content().settings, aggregation="masked")
    forged = msgspec.structs.replace(content.content(), settings=settings, digest="")
    failed = {check.name: check.detail for check in fulcrum.verify(forged) if not check.holds}
    assert failed["masking"] == "'north' of 3 silos cannot be unmasked with 1 missing and 1 colluding"
    unknown = msgspec.structs.replace(forged, settings=msgspec.structs.replace(settings, aggregation="hidden"))
    unknown = msgspec.structs.replace(unknown, digest=content_digest(unknown))
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(unknown))
    with pytest.raises(PlanError, check=coded("plan.field-invalid")):
        fulcrum.read_plan(tmp_path / "plan.json")


def test_a_policy_asks_about_the_observer_that_there_is():
    policy = Policy(largest_epsilon_above=1.0, largest_epsilon_inside=2.0)
    policy.check(made(), "region-1-1")
    with pytest.raises(fulcrum.PolicyError, check=coded("policy.epsilon-exceeded", where="inside its region")):
        policy.check(made(aggregation="trusted"), "region-1-1")


def test_the_commands_that_make_a_plan_again_say_that_it_is_masked():
    assert "--aggregation masked" in reproducing_commands(made())[0]
    assert "--aggregation" not in reproducing_commands(made(aggregation="trusted"))[0]


def test_advice_warns_of_regions_in_which_masking_hides_little():
    [told] = [one.text for one in fulcrum.advice_on(made()) if one.kind == "curious-aggregator"]
    assert "Against the server together with one silo of a region the worst epsilon is 1.172" in told
    assert not [one for one in fulcrum.advice_on(made(colluders=1)) if one.kind == "curious-aggregator"]


def test_advice_on_one_group_counts_one_silo_of_each_region():
    """By counting: one silo of one region alone would leave more noise than the figure that is told."""
    plan = made({"north": [100, 100, 100], "south": [100, 100]}, epsilon={"federation": 1.0})
    [told] = [one.text for one in fulcrum.advice_on(plan) if one.kind == "curious-aggregator"]
    noise = plan.noise_variance
    one_gone, two_gone = (
        epsilon_of(math.sqrt(noise.sum() - count * noise[0]) / 0.2, rounds=10, delta=1e-5) for count in (1, 2)
    )
    assert one_gone < 1.2 < two_gone == pytest.approx(plan.worst_epsilon("silo"), rel=1e-9)
    assert (
        f"Against the server together with one silo of each region the worst epsilon is {display_epsilon(two_gone):g}"
        in told
    )
    assert "small region" not in told


def test_a_target_on_the_federation_does_not_leave_a_silo_bare_where_another_declares_its_own(tmp_path):
    """A declared epsilon is against whoever sees the region's sum, so that each region would be masked by itself."""
    path = tmp_path / "silos.csv"
    path.write_text("silo,records,region,epsilon\ncaen,100,north,0.5\nlille,100,north,\nlyon,100,south,\n")
    with pytest.raises(UnreachableTargetError, check=coded("plan.masked-target-missing", silo="lille")):
        made(str(path), epsilon={"federation": 1.0})
    for target in ({"federation": 1.0, "region": 2.0}, {"federation": 1.0, "server+silo": 2.0}):
        plan = made(str(path), epsilon=target)
        assert plan.group_tier == "region"
        assert plan.epsilon_above.max() <= 2.0
        assert plan.epsilon_above[0] <= 0.5
    path.write_text(path.read_text().replace("0.5", ""))
    assert made(str(path), epsilon={"federation": 1.0}).group_tier == "federation"


@pytest.mark.parametrize(("silos", "dropouts", "masked"), [(9, 3, False), (10, 3, True), (12, 4, False), (13, 4, True)])
def test_more_than_two_thirds_of_a_group_unmask_its_sum(silos, dropouts, masked):
    """Two sets of two thirds share a third: where no more unmask, honest silos might be told of two sets of survivors."""
    federation = fulcrum.Federation.from_sizes({"north": [100] * silos})
    content = fulcrum.plan(federation, rounds=1, epsilon=1.0, dropouts=dropouts).content()
    settings = msgspec.structs.replace(content.settings, aggregation="masked")
    checks = {check.name: check.holds for check in fulcrum.verify(msgspec.structs.replace(content, settings=settings))}
    assert checks["masking"] == masked
