import dataclasses

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.errors import DataError, ParameterError
from fulcrum.planning.theory.leakage import quantised_entropy
from fulcrum.simulation.data import partition
from fulcrum.simulation.data.partition import coupled_partition, declared_partition, target_shares
from fulcrum.simulation.data.tasks import Task, load_task

PROFILES = ("balanced", "balanced-4", "mild", "severe")


def pool(records=25_000, share=0.6):
    labels = (np.arange(records) < share * records).astype(int)
    return Task(
        name="pool",
        features_train=np.zeros((records, 1)),
        labels_train=labels,
        features_test=np.zeros((1, 1)),
        labels_test=np.zeros(1, int),
        classes=("no", "yes"),
        records=200,
    )


def all_shares():
    parts = []
    for name in PROFILES:
        federation = fulcrum.read_federation(name)
        parts += [coupled_partition(pool(), federation, seed=seed).shares for seed in range(10)]
    return np.concatenate(parts)


def test_shares_span_what_the_paper_says_with_its_entropy_at_every_resolution():
    shares = all_shares()
    assert len(shares) == 3840
    assert shares.min() == pytest.approx(0.173, abs=0.004)
    assert shares.max() == pytest.approx(0.827, abs=0.004)
    for levels, entropy in ((4, 1.33), (10, 1.64), (20, 2.23), (50, 3.04)):
        assert quantised_entropy(shares, levels=levels) == pytest.approx(entropy, abs=0.04)


def test_another_coupling_has_another_entropy():
    region_of = fulcrum.read_federation("balanced").membership("region")
    loose = np.concatenate([target_shares(region_of, seed=seed, coupling=0.3) for seed in range(10)])
    assert abs(quantised_entropy(loose, levels=20) - 2.23) > 0.1


@pytest.mark.parametrize("name", ["severe", "consortium", "isic-paper"])
def test_no_record_is_dealt_twice_and_shares_are_what_silos_hold(name):
    federation, task = fulcrum.read_federation(name), pool()
    part = coupled_partition(task, federation, seed=4)
    assert len(np.unique(part.records)) == len(part.records) == part.counts.sum()
    for silo in (0, len(federation) - 1):
        held = part.records[part.starts[silo] : part.starts[silo] + part.counts[silo]]
        assert task.labels_train[held].mean() == pytest.approx(part.shares[silo])
    assert (part.counts / part.counts.sum()) == pytest.approx(federation.weights, abs=5e-4)


def test_seeds_decide_who_holds_what():
    federation = fulcrum.read_federation("mild")
    one, again, other = (coupled_partition(pool(), federation, seed=seed) for seed in (1, 1, 2))
    assert (one.records == again.records).all()
    assert not (one.records == other.records).all()


def test_the_first_region_holds_more_of_the_sensitive_class_and_the_second_less():
    federation, task = fulcrum.read_federation("mild"), pool()
    part = coupled_partition(task, federation, seed=0)
    sensitive = np.add.reduceat(task.labels_train[part.records], part.starts) / part.counts
    region = federation.membership("region")
    assert sensitive[region % 2 == 0].min() > 0.5 > sensitive[region % 2 == 1].max()


def test_shares_and_the_choice_of_records_have_streams_of_their_own():
    federation, task = fulcrum.read_federation("mild"), pool()
    records = coupled_partition(task, federation, seed=5).records
    sensitive = records[task.labels_train[records] == 1]
    for stream, same in ((0, False), (1, True)):
        rng = np.random.default_rng([partition._STREAM, 5, stream])
        pools = [np.flatnonzero(task.labels_train == label) for label in (0, 1)]
        for chosen in pools:
            rng.shuffle(chosen)
        assert (sensitive == pools[1][: len(sensitive)]).all() == same


@pytest.mark.parametrize("records", [0, -5, 0.5, np.nan, np.inf])
def test_records_a_silo_must_be_a_number_of_at_least_1(records):
    with pytest.raises(ParameterError, check=coded("federation.records-range", least=1)):
        coupled_partition(pool(), fulcrum.read_federation("mild"), seed=0, records=records)


def test_where_a_class_runs_out_every_silo_holds_fewer():
    federation = fulcrum.read_federation("severe")
    part = coupled_partition(pool(20_000, 0.5), federation, seed=0)
    assert 150 < part.counts.mean() < 200
    assert np.ptp(part.counts) == 0
    few = coupled_partition(pool(1_000, 0.5), federation, seed=0)
    assert few.counts.min() >= 1
    with pytest.raises(DataError, check=coded("partition.records-few", silos=96)):
        coupled_partition(pool(60, 0.5), federation, seed=0)


def test_the_data_may_name_its_own_silos():
    federation = fulcrum.Federation.from_sizes({"a": {"x": 2, "y": 1}, "b": {"z": 1}})
    task = dataclasses.replace(pool(4, 0.5), silo=("z", "x", "x", "y"))
    part = declared_partition(task, federation)
    assert part.counts.tolist() == [2, 1, 1]
    assert part.records.tolist() == [1, 2, 3, 0]
    assert part.shares.tolist() == [0.5, 0.0, 1.0]
    with pytest.raises(
        DataError, check=coded("partition.silo-unknown", part="records", silo="w", federation="federation")
    ) as caught:
        declared_partition(dataclasses.replace(task, silo=("w", "x", "x", "y")), federation)
    assert "fulcrum data" in caught.value.remedy  # built-in structures of real federations have other names of silos
    with pytest.raises(DataError, check=coded("partition.silo-empty", silo="z")):
        declared_partition(dataclasses.replace(task, silo=("y", "x", "x", "y")), federation)
    with pytest.raises(DataError, check=coded("partition.silos-unnamed")):
        declared_partition(load_task("digits"), federation)
