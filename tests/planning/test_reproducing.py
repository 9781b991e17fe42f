"""The commands that make a plan again: what the command line cannot say is never said as if it could."""

import fulcrum
from fulcrum.words.reproduction import reproducing_commands


def test_weights_by_silo_are_a_column_of_the_file():
    federation = fulcrum.Federation.from_sizes({"n": [100, 200], "s": [300, 100]})
    weights = dict.fromkeys(federation.silo_names.tolist(), 1.0)
    [command, *_] = reproducing_commands(fulcrum.plan(federation, rounds=3, epsilon=1.0, weights=weights))
    assert command.startswith("fulcrum plan FEDERATION_WITH_WEIGHTS ")
    assert "--weights" not in command


def test_the_voice_that_regions_keep_is_asked_for_again():
    made = fulcrum.plan("mild", rounds=3, epsilon=1.0, recipe="joint", parameters=34, least_influence=0.3)
    assert " --least-influence 0.3 " in reproducing_commands(made)[0]
    least = fulcrum.plan("mild", rounds=3, epsilon=1.0, recipe="joint", parameters=34, least_influence=0.0)
    assert " --least-influence 0.0 " in reproducing_commands(least)[0]
    usual = fulcrum.plan("mild", rounds=3, epsilon=1.0, recipe="joint", parameters=34)
    assert "--least-influence" not in reproducing_commands(usual)[0]
    assert "--least-influence" not in reproducing_commands(fulcrum.plan("mild", rounds=3, epsilon=1.0))[0]
