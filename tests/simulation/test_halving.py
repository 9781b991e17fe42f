import itertools

import numpy as np
import pytest

from fulcrum.simulation.halving import halve, stage_seeds

STRENGTH = {name: place / 10 for place, name in enumerate("abcdefghij")}


def search(candidates=tuple(STRENGTH), *, seeds=range(20), interrupt_at=None, **settings):
    """Returns the halving of letters, and the candidates and seeds of every call."""
    calls = []

    def train(some, fresh):
        calls.append((list(some), list(fresh)))
        for candidate in some:
            if interrupt_at == (len(calls), candidate):
                raise KeyboardInterrupt
            yield {candidate: [STRENGTH[candidate] + 0.001 * seed for seed in fresh]}

    return halve(list(candidates), train, seeds=seeds, **settings), calls


@pytest.mark.parametrize("seeds", range(1, 60))
def test_stages_triple_the_seeds_and_begin_with_two_or_more(seeds):
    counts = stage_seeds(seeds)
    assert counts[-1] == seeds
    assert all(fewer == -(-more // 3) for fewer, more in itertools.pairwise(counts))
    assert seeds == 1 or counts[0] >= 2
    assert -(-counts[0] // 3) < 2


def test_the_best_third_goes_on_under_new_seeds_alone():
    halving, calls = search()
    assert [(len(some), fresh) for some, fresh in calls] == [
        (10, [0, 1, 2]),
        (4, [3, 4, 5, 6]),
        (3, list(range(7, 20))),
    ]
    assert halving.finalists == ("j", "i", "h")
    assert halving.seeds == tuple(range(20))
    assert halving.best() == "j"
    assert halving.values["j"].tolist() == pytest.approx([0.9 + 0.001 * seed for seed in range(20)])
    assert {name: len(values) for name, values in halving.values.items()} == {
        **dict.fromkeys("abcdef", 3),
        "g": 7,
        **dict.fromkeys("hij", 20),
    }


def test_candidates_that_stay_are_trained_first_and_never_leave():
    halving, calls = search(always=["a"])
    assert [some for some, _ in calls[::2]] == [["a"]] * 3
    assert halving.finalists == ("a", "j", "i", "h")


def test_every_group_keeps_its_own_best():
    halving, _ = search(group_of=lambda name: name < "f")
    assert {name for name in halving.finalists if name < "f"} == set("cde")
    assert halving.best([name for name in halving.finalists if name < "f"]) == "e"


def test_progress_ends_at_the_total_that_it_names_from_the_beginning():
    told = []
    search(always=["a"], on_try=lambda *numbers: told.append(numbers))
    assert len({total for _, total in told}) == 1
    assert told[-1][0] == told[-1][1] == 10 * 3 + (1 + 3) * 4 + (1 + 3) * 13


def test_a_stop_in_a_later_stage_gives_the_stage_before():
    halving, calls = search(interrupt_at=(2, "i"))
    assert len(calls) == 2
    assert halving.stopped
    assert halving.seeds == (0, 1, 2)
    assert halving.finalists == tuple(STRENGTH)
    assert halving.best() == "j"
    assert halving.final_values("j").tolist() == pytest.approx([0.9, 0.901, 0.902])  # not the seeds of the broken stage


def test_a_stop_in_the_first_stage_gives_what_was_trained():
    halving, _ = search(always=["a"], interrupt_at=(2, "e"))
    assert halving.stopped
    assert halving.finalists == ("a", "b", "c", "d")
    assert halving.best() == "d"


@pytest.mark.parametrize("place", [(1, "a"), (2, "c")])
def test_a_stop_before_every_group_has_a_result_is_passed_on(place):
    with pytest.raises(KeyboardInterrupt):
        search(interrupt_at=place, always=["a"], group_of=lambda name: name < "c")


def test_equal_values_leave_the_order_of_the_candidates():
    halving = halve([1, 2, 3, 4], lambda some, seeds: [{one: np.zeros(len(seeds)) for one in some}], seeds=[0, 1])
    assert halving.best() == 1
