"""What a region accepts, from whom, and who declines."""

import dataclasses

import numpy as np
import pytest
from error_codes import coded
from regional import LAYOUT, MEMBERS, PARAMETERS, UPDATE, refusal

import fulcrum
from fulcrum.aggregation.regional_aggregator import Region
from fulcrum.core.messages.layout import Layout
from fulcrum.core.messages.regional_reply import RegionalSum
from fulcrum.core.messages.sealing import Sealer
from fulcrum.core.silo.release_parameters import release_parameters_of
from fulcrum.core.silo.releasing import _lattice_release, release
from fulcrum.core.store.ledger import Ledger
from fulcrum.errors import ExchangeError
from fulcrum.planning.files.plan_issue import new_key


def test_releases_are_gathered_and_summed(world, region):
    sent = {silo: world.release(silo) for silo in MEMBERS}
    for number, (silo, made) in enumerate(sent.items()):
        assert region.present(1) == set(MEMBERS[:number])
        assert region.accept(world.seal(made), 1) == silo
    assert region.missing(1) == set()
    assert region.members == set(MEMBERS)
    assert not region.is_summed(1)
    total = region.close_round(1)
    assert region.is_summed(1)
    assert isinstance(total, RegionalSum)
    assert (total.region, total.round_number, total.members) == ("north", 1, MEMBERS)
    assert (total.plan_digest, total.layout, total.step) == (world.plan.digest, LAYOUT, sent["lille"].step)
    assert (total.values == sum(made.values for made in sent.values())).all()


def test_what_a_silo_really_releases_is_accepted(world, region, tmp_path):
    for silo in MEMBERS:
        with Ledger.open(tmp_path / f"{silo}.ledger", silo=silo) as ledger:
            region.accept(world.seal(release(UPDATE, world.plan, silo, 1, ledger=ledger)), 1)
    assert isinstance(region.close_round(1), RegionalSum)


def test_the_same_release_again_changes_nothing(world, region, path):
    made = world.release("lille")
    first = world.seal(made)
    for sealed in (first, first, world.seal(made)):
        assert region.accept(sealed, 1) == "lille"
    region.close()
    with world.open(path) as again:
        assert again.accept(world.seal(made), 1) == "lille"
        assert again.present(1) == {"lille"}


def test_another_release_of_a_silo_is_refused_even_after_a_restart(world, region, path):
    made = world.release("lille")
    region.accept(world.seal(made), 1)
    other = world.sealed("lille")
    with pytest.raises(ExchangeError, check=coded("region.release-replaced", silo="lille", round_number=1)):
        region.accept(other, 1)
    region.close()
    with world.open(path) as again:
        with pytest.raises(ExchangeError, check=coded("region.release-replaced", silo="lille", round_number=1)):
            again.accept(other, 1)
        changed = dataclasses.replace(made, values=made.values + (np.arange(PARAMETERS) == 3))
        with pytest.raises(ExchangeError, check=coded("region.release-replaced")):
            again.accept(world.seal(changed), 1)
        assert again.present(1) == {"lille"}


def test_early_late_and_replayed_releases_are_refused(world, region):
    first = {silo: world.sealed(silo) for silo in MEMBERS}
    with pytest.raises(ExchangeError, check=coded("region.release-other-round", round_number=2, gathered=1)):
        region.accept(world.sealed("lille", 2), 1)
    for sealed in first.values():
        region.accept(sealed, 1)
    region.close_round(1)
    with pytest.raises(ExchangeError, check=coded("region.release-late", silo="lille", round_number=1)):
        region.accept(first["lille"], 1)
    with pytest.raises(ExchangeError, check=coded("region.release-other-round", round_number=1, gathered=2)):
        region.accept(first["lille"], 2)
    for wrong in (0, 7, -1, "1", 1.0, True, None):
        with pytest.raises(ExchangeError, check=coded("region.round-range", rounds=6)):
            region.accept(first["lille"], wrong)
        with pytest.raises(ExchangeError, check=coded("region.round-range", rounds=6)):
            region.close_round(wrong)
        with pytest.raises(ExchangeError, check=coded("region.round-range", rounds=6)):
            region.present(wrong)


def test_other_plans_regions_and_strangers_are_refused(world, region):
    with pytest.raises(ExchangeError, check=coded("seal.plan-differs")):
        region.accept(world.sealed("lille", plan=world.tight), 1)
    with pytest.raises(ExchangeError, check=coded("seal.region-differs")):
        region.accept(world.sealed("nice"), 1)
    with pytest.raises(
        ExchangeError, check=coded("message.malformed", noun="a sealed release of format fulcrum.sealed/2")
    ):
        region.accept(b"junk", 1)
    assert region.present(1) == set()
    assert region.rounds() == ()


TURNED = Layout(names=("weight", "bias"), shapes=((19, 2), (2,)))
RENAMED = Layout(names=("weights", "bias"), shapes=LAYOUT.shapes)


def test_other_layouts_are_refused_in_and_across_rounds_and_restarts(world, region, path):
    region.accept(world.sealed("lille"), 1)
    for other in (TURNED, RENAMED):
        with pytest.raises(ExchangeError, check=coded("region.release-layout-differs", silo="metz")):
            region.accept(world.sealed("metz", layout=other), 1)
        with pytest.raises(ExchangeError, check=coded("region.release-layout-differs")):
            region.accept(world.sealed("metz", 2, layout=other), 2)
    region.close()
    with world.open(path, layout=None) as again:
        with pytest.raises(ExchangeError, check=coded("region.release-layout-differs")):
            again.accept(world.sealed("metz", 2, layout=TURNED), 2)
        assert again.accept(world.sealed("metz", 2), 2) == "metz"


@pytest.mark.parametrize("foreign", [TURNED, RENAMED])
def test_a_silo_that_comes_first_with_another_layout_is_refused_alone(world, region, path, foreign):
    with pytest.raises(ExchangeError, check=coded("region.release-layout-differs", silo="metz")):
        region.accept(world.sealed("metz", layout=foreign), 1)
    region.close()
    with world.open(path, layout=None) as again:
        with pytest.raises(ExchangeError, check=coded("region.release-layout-differs", silo="metz")):
            again.accept(world.sealed("metz", layout=foreign), 1)
        for silo in ("lille", "caen"):
            assert again.accept(world.sealed(silo), 1) == silo
        total = again.close_round(1)
    assert (total.members, total.layout) == (("caen", "lille"), LAYOUT)


def test_before_any_model_was_sent_every_release_is_refused(world, path):
    with world.open(path, layout=None) as region:
        with pytest.raises(ExchangeError, check=coded("region.release-layout-differs")):
            region.accept(world.sealed("lille"), 1)
        region.expect_layout(RENAMED)  # a start that was given up
        region.expect_layout(LAYOUT)
        assert region.accept(world.sealed("lille"), 1) == "lille"


def test_the_model_of_a_plan_keeps_its_layout_once_a_release_is_there(world, region, path):
    region.accept(world.sealed("lille"), 1)
    for _ in range(2):
        region.expect_layout(LAYOUT)
        with pytest.raises(ExchangeError, check=coded("region.model-layout-differs")):
            region.expect_layout(RENAMED)
        region.close()
        region = world.open(path)
    assert region.present(1) == {"lille"}
    region.close()


def test_a_model_that_the_plan_was_not_made_for_is_refused(world, path):
    with world.open(path, layout=None) as region:
        longer = Layout(names=("a",), shapes=((41,),))
        with pytest.raises(ExchangeError, check=coded("model.parameters-differ", expected=40)):
            region.expect_layout(longer)
        twice = Layout(names=("a", "a"), shapes=((20,), (20,)))
        with pytest.raises(ExchangeError, check=coded("message.layout-invalid")):
            region.expect_layout(twice)


def test_a_silo_declines_a_round_in_its_own_signed_word(world, region):
    sealer = Sealer(world.plan, "lille", world.folder / "lille")
    assert region.checked_decline(sealer.decline(1), 1) == "lille"
    assert region.present(1) == set()
    with pytest.raises(
        ExchangeError, check=coded("region.decline-other-round", silo="lille", round_number=1, gathered=2)
    ):
        region.checked_decline(sealer.decline(1), 2)
    assert region.accept(world.sealed("lille"), 1) == "lille"  # it may come to another mind
    for wrong in (0, 7, "1", None):
        with pytest.raises(ExchangeError, check=coded("region.round-range")):
            region.checked_decline(sealer.decline(1), wrong)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(names=("a", "a"), shapes=((20,), (20,))),
        Layout(names=("a",), shapes=((20,), (20,))),
        Layout(names=("a", "b"), shapes=((40,),)),
        Layout(names=("a\n",), shapes=((40,),)),
        Layout(names=("a",), shapes=((-8, -5),)),
    ],
)
def test_layouts_that_no_arrays_have_are_refused(world, region, layout):
    with pytest.raises(ExchangeError, check=coded("seal.content-malformed")):
        region.accept(world.sealed("lille", layout=layout), 1)


def test_another_number_of_parameters_is_refused(world, region):
    made = world.release("lille")
    shorter = dataclasses.replace(made, layout=Layout(names=("a",), shapes=((39,),)), values=made.values[:39])
    with pytest.raises(ExchangeError, check=coded("region.release-parameters", expected=40)):
        region.accept(world.seal(shorter), 1)
    plan = world.made(purpose="research", parameters=None)
    empty = dataclasses.replace(
        world.release("lille", plan=plan), layout=Layout(names=(), shapes=()), values=np.zeros(0)
    )
    refuses = pytest.raises(ExchangeError, check=coded("region.release-parameters"))
    with world.open(region._file.path.with_name("other"), plan) as other, refuses:
        other.accept(world.seal(empty, plan), 1)


@pytest.mark.parametrize("value", [2**53, -(2**53), 2**63 - 1, -(2**63)])
def test_integers_that_could_overflow_the_sum_are_refused(world, region, value):
    values = world.release("lille").values.copy()
    values[7] = value
    with pytest.raises(ExchangeError, check=coded("region.release-not-finite")):
        region.accept(world.sealed("lille", values=values), 1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(world, path, value):
    values = world.release("lille", plan=world.research).values.copy()
    values[7] = value
    with world.open(path, world.research) as region:
        sealed = world.sealed("lille", plan=world.research, values=values)
        with pytest.raises(ExchangeError, check=coded("region.release-not-finite", silo="lille")):
            region.accept(sealed, 1)
        values[7] = 1e200
        sealed = world.sealed("lille", plan=world.research, values=values)
        with pytest.raises(ExchangeError, check=coded("region.release-norm")):
            region.accept(sealed, 1)


def test_releases_of_more_than_1024_silos_stay_so_small_that_their_sum_fits_64_bits(tmp_path):
    """2^53 a coordinate is enough for 1,024 silos: the sum of one more would wrap round."""
    silos = 1_100
    keys = dict.fromkeys((f"north-{k}" for k in range(1, silos + 1)), new_key(tmp_path / "silo"))
    keys["north"] = new_key(tmp_path / "north", "sealing")
    plan = fulcrum.plan(
        fulcrum.Federation.from_sizes({"north": [100] * silos}),
        rounds=1,
        epsilon={"region": 1.0, "aggregator": 6.0},
        parameters=2,
        purpose="deployment",
        keys=keys,
    )
    largest = (2**63 - 1) // silos
    assert largest < 2**53 <= (2**63 - 1) // 1_024 + 1
    layout = Layout(names=("a",), shapes=((2,),))
    sealer = Sealer(plan, "north-1", tmp_path / "silo")
    with Region.open(tmp_path / "north.region", plan, "north", tmp_path / "north") as region:
        region.expect_layout(layout)
        honest = _lattice_release(np.zeros(2), layout, release_parameters_of(plan, "north-1"), 1)
        for value in (largest, -largest, 2**53 - 1):
            sealed = sealer.seal(dataclasses.replace(honest, values=np.array([value, 0])))
            with pytest.raises(ExchangeError, check=coded("region.release-not-finite")):
                region.accept(sealed, 1)
        within = sealer.seal(dataclasses.replace(honest, values=np.array([largest - 1, 1 - largest])))
        assert "has a norm above" in refusal(region.accept, within, 1), "the next test is asked"
        region.accept(sealer.seal(honest), 1)
