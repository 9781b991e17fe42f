"""The folder of one silo's site changed and looked into, and a training module of the user's own."""

import sys
import textwrap

from fulcrum.core.silo.silo_release import SiloStation
from fulcrum.core.silo.site import read_site
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.core.training.in_process_training import InProcessTraining
from fulcrum.core.training.training_module import TrainingModule, load_training_module


def released(home):
    """The rounds that the ledger of silo a holds."""
    with read_ledger(home / "state" / "a.ledger") as ledger:
        return [entry.round_number for entry in ledger.entries()]


def rewritten(home, old, new):
    """Has site.toml say something else."""
    path = home / "site.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def in_process(home, train, start=lambda options: {}):
    """A silo that trains in its own process, as one on Flower does, by a function or by the module of that name."""
    station = SiloStation(read_site(home, "silo"))
    learner = TrainingModule(start=start, train=train) if callable(train) else ImportedWhenTrained(train)
    station._training = InProcessTraining(learner)
    return station


class ImportedWhenTrained:
    """A training module that is imported when it first trains, as that of the app of a silo on Flower may be."""

    def __init__(self, module):
        self.module = module

    def update(self, model, assignment):
        return load_training_module(self.module).update(model, assignment)


def trained_by(home, monkeypatch, body):
    """Has a silo train by a module of this text."""
    module(home.parent, monkeypatch, body)
    rewritten(home, "fulcrum.engines.built_in_training", "their_training")


def module(folder, monkeypatch, body):
    """Installs a training module `their_training` of this text."""
    (folder / "their_training.py").write_text(textwrap.dedent(body))
    monkeypatch.syspath_prepend(str(folder))
    sys.modules.pop("their_training", None)
    return load_training_module("their_training")
