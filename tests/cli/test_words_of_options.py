import shlex

from fulcrum.cli.run_commands.deployments import SiteOptions
from fulcrum.cli.shared_options.options import words_of
from fulcrum.cli.shared_options.target_options import TargetOptions
from fulcrum.cli.shared_options.training_options import TrainingOptions


def test_options_are_said_as_they_are_typed_and_only_where_they_are_not_the_usual():
    target = TargetOptions(rounds=10, epsilon="region=1.0,silo=2.0", colluders=2, shrink=False)
    assert words_of(target) == "--rounds 10 --epsilon region=1.0,silo=2.0 --colluders 2 --no-shrink"
    assert words_of(TrainingOptions()) == ""
    assert words_of(TrainingOptions(data="digits"), "data") == "--data digits"
    training = TrainingOptions(data="my records.npz", learning_rate=0.1, silo_column="hospital")
    assert shlex.split(words_of(training)) == [
        "--data",
        "my records.npz",
        "--silo-column",
        "hospital",
        "--learning-rate",
        "0.1",
    ]


def test_an_option_that_may_be_repeated_is_and_has_the_name_that_it_is_typed_by():
    sites = SiteOptions(train="learning", settings=("features=6", "records=/data/r.npy"))
    assert words_of(sites) == "--train learning --option features=6 --option records=/data/r.npy"
