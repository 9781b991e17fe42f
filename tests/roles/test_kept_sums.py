"""A server keeps the sums that it took where it is asked to, and nowhere else."""

import dataclasses

import numpy as np
import pytest

import fulcrum
from fulcrum.audit.integration.masked_noise import canaries_of
from fulcrum.core.messages.layout import Layout
from fulcrum.core.messages.regional_reply import RegionalSum, Withheld
from fulcrum.errors import DataError
from fulcrum.server.coordinator import Coordinator
from fulcrum.server.sum_archive import SUMS_FOLDER, read_kept_sums

PLAN = fulcrum.plan(
    fulcrum.Federation.from_sizes({"north": [100, 200], "south": [150]}),
    rounds=2,
    epsilon=1.0,
    parameters=3,
    server="random-effects",  # a pooling server goes on without a region
)


def ran(folder):
    server = Coordinator.open(folder, PLAN, {"head": np.zeros(3)})
    layout = Layout(names=("head",), shapes=((3,),))
    common = {"plan_digest": PLAN.digest, "layout": layout, "step": None}
    for number in (1, 2):
        north = RegionalSum(
            region="north",
            round_number=number,
            members=("north-1", "north-2"),
            values=np.full(3, 0.5 * number),
            **common,
        )
        server.receive(north.to_bytes(), "north")
        if number == 1:
            south = RegionalSum(region="south", round_number=1, members=("south-1",), values=np.ones(3), **common)
            server.receive(south.to_bytes(), "south")
        else:
            away = Withheld(
                plan_digest=PLAN.digest, region="south", round_number=2, missing=("south-1",), reason="not there"
            )
            server.receive(away.to_bytes(), "south")
        server.finish_round()


def test_sums_are_kept_as_they_came_where_the_folder_for_them_is_there(tmp_path):
    (tmp_path / SUMS_FOLDER).mkdir()
    ran(tmp_path)
    found = read_kept_sums(tmp_path)
    assert [(total.round_number, total.region) for total in found] == [(1, "north"), (1, "south"), (2, "north")]
    assert found[2].values.tolist() == [1.0, 1.0, 1.0]
    assert found[0].members == ("north-1", "north-2")


def test_no_sum_is_kept_unasked(tmp_path):
    ran(tmp_path)
    assert not (tmp_path / SUMS_FOLDER).exists()
    assert read_kept_sums(tmp_path) == []


def test_what_is_no_sum_is_refused(tmp_path):
    (tmp_path / SUMS_FOLDER).mkdir()
    away = Withheld(plan_digest="x", region="south", round_number=2, missing=(), reason="not there")
    (tmp_path / SUMS_FOLDER / "000001-0000.sum").write_bytes(away.to_bytes())
    with pytest.raises(DataError, match="holds no sum"):
        read_kept_sums(tmp_path)


def test_canaries_of_missing_silos_are_not_expected_in_a_sum(tmp_path):
    (tmp_path / SUMS_FOLDER).mkdir()
    ran(tmp_path)
    north = [total for total in read_kept_sums(tmp_path) if total.region == "north"]
    sent, known = canaries_of(PLAN, north, seed=1)
    width = np.sqrt(PLAN.noise_variance[:2].sum()) * PLAN.clip_norm
    assert sent[0] * width == pytest.approx(np.full(3, 0.5))
    both = float(np.linalg.norm(known[0] * width))
    assert both <= PLAN.federation.weights[:2].sum() * PLAN.clip_norm * (1 + 1e-12)
    alone, hers = canaries_of(PLAN, [dataclasses.replace(north[0], members=("north-2",))], seed=1)
    narrower = np.sqrt(PLAN.noise_variance[1]) * PLAN.clip_norm
    assert float(np.linalg.norm(hers[0] * narrower)) == pytest.approx(PLAN.federation.weights[1] * PLAN.clip_norm)
    assert alone[0] * narrower == pytest.approx(np.full(3, 0.5))
