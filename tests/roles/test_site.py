"""What one site does, without any engine: its folder, its training module, its answers."""

import asyncio
import concurrent.futures
import dataclasses
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import msgspec
import numpy as np
import pytest

import fulcrum
from fulcrum.engines.built_in_training import evaluate, start, train
from fulcrum.errors import DataError, FileInUseError, FulcrumError, LedgerInUseError, ReleaseError, SignatureError
from fulcrum.exchange.model import pack_model
from fulcrum.exchange.sealing import unseal
from fulcrum.ledger.ledger import Ledger
from fulcrum.roles.learning import Assignment, Learner, load_learner
from fulcrum.roles.region_file import RegionFile
from fulcrum.roles.releasing import release
from fulcrum.roles.silo import SiloStation
from fulcrum.roles.site import FORMAT, SiteSettings, once_free, read_site, site_toml

pytest.importorskip("cryptography", reason="needs the extra secure")


def released(home):
    with Ledger.read(home / "state" / "a.ledger") as ledger:
        return [entry.round_number for entry in ledger.entries()]


def test_a_silo_answers_with_a_release_that_its_region_alone_can_open(silo, model):
    site = read_site(silo, "silo")
    sealed = SiloStation(site).answer(pack_model(model), 1)
    release = unseal(sealed, site.plan, "north", silo.parent / "north.key")
    assert (release.silo, release.round_number) == ("a", 1)
    assert released(silo) == [1]


def test_asked_again_it_sends_the_same_release_and_trains_nothing(silo, model, monkeypatch):
    site = read_site(silo, "silo")
    first = SiloStation(site).answer(pack_model(model), 1)
    monkeypatch.setattr(Learner, "update", lambda *_: pytest.fail("trained again"))
    second = SiloStation(site).answer(pack_model(model), 1)
    assert first != second  # sealed anew
    one, two = (unseal(sealed, site.plan, "north", silo.parent / "north.key") for sealed in (first, second))
    assert np.array_equal(one.values, two.values)
    assert released(silo) == [1]


def test_another_model_for_the_same_round_gets_nothing(silo, model):
    station = SiloStation(read_site(silo, "silo"))
    station.answer(pack_model(model), 2)
    with pytest.raises(FulcrumError, match="round 2 is released"):
        station.answer(pack_model({"head": model["head"] + 1}), 2)
    assert released(silo) == [2]


@pytest.mark.parametrize("round_number", [0, 4, -1, None, "1", 1.5])
def test_a_round_outside_the_plan_gets_nothing(silo, model, round_number):
    with pytest.raises(ReleaseError):
        SiloStation(read_site(silo, "silo")).answer(pack_model(model), round_number)


@pytest.mark.parametrize("data", [None, b"", b"x", b"\x05\0\0\0abcde", 7, "text"])
def test_what_is_no_model_gets_nothing(silo, data):
    with pytest.raises(FulcrumError, match="not a model"):
        SiloStation(read_site(silo, "silo")).answer(data, 1)
    assert released(silo) == []


def test_a_ledger_that_is_gone_is_not_begun_anew(silo, model):
    station = SiloStation(read_site(silo, "silo"))
    station.answer(pack_model(model), 1)
    (silo / "state" / "a.ledger").unlink()
    with pytest.raises(ReleaseError, match="what this silo has spent"):
        station.answer(pack_model({"head": model["head"] + 1}), 1)


def test_a_ledger_that_goes_while_it_is_waited_for_is_not_begun_anew(silo, model, monkeypatch):
    station, path = SiloStation(read_site(silo, "silo")), silo / "state" / "a.ledger"
    held = Ledger.open(path, silo="a")

    def moved_away(seconds):
        held.close()
        path.unlink()

    monkeypatch.setattr("fulcrum.roles.site.time.sleep", moved_away)
    with pytest.raises(ReleaseError, match="what this silo has spent"):
        station.answer(pack_model(model), 1)
    assert not path.exists()


def all_at_once():
    return BaseExceptionGroup("several", [SystemExit(1), ValueError("one")])


@pytest.mark.parametrize(
    "failure",
    [
        ZeroDivisionError,
        SystemExit,
        MemoryError,
        RecursionError,
        GeneratorExit,
        asyncio.CancelledError,
        concurrent.futures.CancelledError,
        StopIteration,
        all_at_once,
        fulcrum.PolicyError,
    ],
)
def test_a_failure_in_training_is_hidden_in_noise_and_told_to_the_silo_alone(silo, model, monkeypatch, caplog, failure):
    def fail(*_):
        raise failure()

    monkeypatch.setattr(Learner, "update", fail)
    site = read_site(silo, "silo")
    sealed = SiloStation(site).answer(pack_model(model), 1)
    release = unseal(sealed, site.plan, "north", silo.parent / "north.key")
    assert release.values.any()
    assert "training failed in round 1" in caplog.text
    assert released(silo) == [1]


@pytest.mark.parametrize("failure", [OSError("the disk of the log is full"), SystemExit(1)], ids=["fails", "exits"])
def test_a_listener_that_fails_keeps_no_release_back(silo, model, monkeypatch, failure):
    class Broken(logging.Handler):
        def emit(self, record):
            raise failure

    def failed(*_):
        raise ValueError("no batch")

    monkeypatch.setattr(Learner, "update", failed)
    listener, alarm = Broken(), logging.getLogger("fulcrum.alarm")
    alarm.addHandler(listener)
    try:
        SiloStation(read_site(silo, "silo")).answer(pack_model(model), 1)
    finally:
        alarm.removeHandler(listener)
    assert released(silo) == [1]


def test_an_interrupt_is_the_operators_and_is_not_hidden(silo, model, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Learner, "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        SiloStation(read_site(silo, "silo")).answer(pack_model(model), 1)
    assert released(silo) == []


@pytest.mark.parametrize(
    "returned",
    [
        "None",
        "7",
        "[]",
        "{}",
        "{'head': None}",
        "{'head': 'text'}",
        "{'head': model['head'].astype(complex) * 1j}",
        "{'head': model['head'].astype(object)}",
        "{'head': model['head'].astype(str)}",
        "{'head': model['head'][1:]}",
        "{'head': [[1, 2], [3]]}",
        "{'other': model['head']}",
        "{'head': model['head'], 'more': model['head']}",
        "model['head']",
        "iter(())",
    ],
)
def test_whatever_training_returns_the_silo_answers_and_is_told(silo, model, monkeypatch, caplog, returned):
    """What does not fit the model is zero plus noise, as a failure is: an observer sees a release like any other."""
    module(
        silo.parent,
        monkeypatch,
        f"""
        def start(options): return {{}}
        def train(model, assignment): return {returned}
        """,
    )
    rewritten(silo, "fulcrum.engines.built_in_training", "their_training")
    site = read_site(silo, "silo")
    sealed = SiloStation(site).answer(pack_model(model), 1)
    release = unseal(sealed, site.plan, "north", silo.parent / "north.key")
    assert release.layout.names == ("head",)
    assert "training failed in round 1" in caplog.text
    assert released(silo) == [1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("ending", "status"), [("sys.exit(3)", 3), ("return model", 0), ("raise ValueError", 1)])
def test_a_process_that_training_forks_does_not_answer_for_the_silo(silo, model, monkeypatch, ending, status):
    module(
        silo.parent,
        monkeypatch,
        f"""
        import os, sys
        def start(options): return {{}}
        def train(model, assignment):
            if not (child := os.fork()):
                {ending}
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == {status}
            assert assignment.options["ledger"]() == []
            return model
        """,
    )
    rewritten(silo, "fulcrum.engines.built_in_training", "their_training")
    site, parent, told = read_site(silo, "silo"), os.getpid(), []
    site = dataclasses.replace(
        site, settings=msgspec.structs.replace(site.settings, options={"ledger": lambda: released(silo)})
    )
    monkeypatch.setattr("fulcrum.roles.silo.sound_alarm", lambda *_, **__: told.append(sys.exc_info()[1]))
    try:
        SiloStation(site).answer(pack_model(model), 1)
    finally:
        if os.getpid() != parent:
            os._exit(99)
    assert told == []
    assert released(silo) == [1]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_an_alarm_that_training_leaves_does_not_strike_while_the_release_is_made(silo, model, monkeypatch):
    struck = []

    def strike(*_):
        struck.append("late")
        raise TimeoutError("training took long")

    def update(self, arrays, assignment):
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        return {"head": arrays["head"]}

    def slow(*arguments, **options):
        time.sleep(0.2)
        return release(*arguments, **options)

    monkeypatch.setattr(Learner, "update", update)
    monkeypatch.setattr("fulcrum.roles.silo.release", slow)
    before = signal.signal(signal.SIGALRM, strike)
    try:
        SiloStation(read_site(silo, "silo")).answer(pack_model(model), 1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert (released(silo), struck) == ([1], [])


def test_what_training_tells_numpy_to_raise_on_does_not_show(silo, model, monkeypatch, caplog):
    """A module that asks for errors where numbers are too small must not decline for the records that have such."""
    module(
        silo.parent,
        monkeypatch,
        """
        import numpy as np
        def start(options): return {}
        def train(model, assignment):
            np.seterr(all="raise")
            changed = model["head"] + 0.5
            changed[0, 0] = 1e-200
            return {"head": changed}
        """,
    )
    rewritten(silo, "fulcrum.engines.built_in_training", "their_training")
    with np.errstate():
        SiloStation(read_site(silo, "silo")).answer(pack_model(model), 1)
    assert released(silo) == [1]
    assert caplog.text == ""


def test_what_is_refused_is_refused_before_training(silo, model, monkeypatch):
    monkeypatch.setattr(Learner, "update", lambda *_: pytest.fail("trained"))
    (silo / "policy.toml").write_text("largest_epsilon_above = 0.1\nlargest_epsilon_inside = 90\n")
    with pytest.raises(fulcrum.PolicyError):
        SiloStation(read_site(silo, "silo")).answer(pack_model(model), 1)


def test_a_ledger_that_another_process_is_letting_go_is_waited_for(silo, model):
    station = SiloStation(read_site(silo, "silo"))
    held = Ledger.open(silo / "state" / "a.ledger", silo="a")
    timer = threading.Timer(0.5, held.close)
    timer.start()
    station.answer(pack_model(model), 1)
    timer.join()
    assert released(silo) == [1]


def test_the_silos_own_policy_is_asked(silo, model):
    (silo / "policy.toml").write_text("largest_epsilon_above = 0.1\nlargest_epsilon_inside = 90\n")
    with pytest.raises(fulcrum.PolicyError, match=r"allows epsilon 0\.1"):
        SiloStation(read_site(silo, "silo")).answer(pack_model(model), 1)
    assert released(silo) == []


def replaced_by_research(home):
    """Another plan of the same issuer and keys takes the place of the site's own: one for research."""
    keys = dict(fulcrum.read_plan(home / "plan.json").keys)
    plan = fulcrum.plan(str(home.parent / "fed.csv"), rounds=3, epsilon=5.0, keys=keys)
    plan.save(home / "plan.json")
    fulcrum.sign_plan(home / "plan.json", home.parent / "issuer.key")


def rewritten(home, old, new):
    path = home / "site.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize("role", ["silo", "region", "server"])
@pytest.mark.parametrize("written", ["fulcrum.site/1", FORMAT])
def test_a_site_runs_no_research_plan_of_its_issuer_unless_it_was_made_for_research(silo, role, written):
    rewritten(silo, 'role = "silo"', f'role = "{role}"')
    if written != FORMAT:  # as it was written before there was a purpose
        rewritten(silo, FORMAT, written)
        rewritten(silo, 'purpose = "deployment"\npolicy = false\n', "")
    assert read_site(silo, role).settings.purpose == "deployment"
    replaced_by_research(silo)
    with pytest.raises(DataError, match=r"a site for deployment, and .* is a plan for research") as caught:
        read_site(silo, role)
    assert "\n" not in str(caught.value)


def test_a_deployed_silo_draws_no_seeded_noise_whatever_plan_it_is_given(silo, model):
    site = read_site(silo, "silo")
    replaced_by_research(silo)
    research = fulcrum.read_signed_plan(silo / "plan.json", site.settings.issuer)
    with pytest.raises(ReleaseError):
        SiloStation(dataclasses.replace(site, plan=research)).answer(pack_model(model), 1)


def test_a_site_for_research_runs_research_plans_alone_and_heeds_no_policy_but_to_refuse(silo, model):
    rewritten(silo, 'purpose = "deployment"', 'purpose = "research"')
    with pytest.raises(DataError, match=r"a site for research, and .* is a plan for deployment"):
        read_site(silo, "silo")
    replaced_by_research(silo)
    SiloStation(read_site(silo, "silo")).answer(pack_model(model), 1)
    (silo / "policy.toml").write_text("largest_epsilon_above = 9\nlargest_epsilon_inside = 90\n")
    with pytest.raises(fulcrum.PolicyError, match="deployment plans alone"):
        SiloStation(read_site(silo, "silo")).answer(pack_model(model), 1)


def test_a_format_that_knows_no_purpose_cannot_be_given_one(silo):
    rewritten(silo, FORMAT, "fulcrum.site/1")
    assert read_site(silo, "silo").settings.purpose == "deployment"
    rewritten(silo, 'purpose = "deployment"', 'purpose = "research"')
    with pytest.raises(DataError, match="knows neither purpose nor policy"):
        read_site(silo, "silo")


def test_a_policy_that_is_gone_or_cannot_be_reached_is_not_left_out(silo, model):
    (silo / "policy.toml").symlink_to(silo / "moved.toml")
    with pytest.raises(fulcrum.PolicyError, match="cannot be read"):
        SiloStation(read_site(silo, "silo")).answer(pack_model(model), 1)
    (silo / "policy.toml").unlink()
    rewritten(silo, "policy = false", "policy = true")
    with pytest.raises(fulcrum.PolicyError, match="cannot be read"):
        SiloStation(read_site(silo, "silo")).answer(pack_model(model), 1)
    assert released(silo) == []


def test_the_issuer_of_a_site_is_a_key_and_never_a_file(silo, monkeypatch):
    issuer = read_site(silo, "silo").settings.issuer
    monkeypatch.chdir(silo.parent)
    forger = fulcrum.new_key(silo.parent / "forger.key")
    fulcrum.sign_plan(silo / "plan.json", silo.parent / "forger.key")
    named = silo.parent / issuer  # a file that is named like the key
    named.parent.mkdir(parents=True, exist_ok=True)
    named.write_text(forger)
    with pytest.raises(SignatureError, match="not by the issuer"):
        read_site(silo, "silo")
    rewritten(silo, issuer, "forger.key.pub")
    with pytest.raises(SignatureError, match="is not a public key"):
        read_site(silo, "silo")


def test_an_unsigned_or_changed_plan_is_refused(silo):
    (silo / "plan.json.sig").unlink()
    with pytest.raises(SignatureError, match="cannot be read"):
        read_site(silo, "silo")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("silo", "region"), "is that of a region"),
        (("fulcrum.site/2", "fulcrum.site/9"), "expected fulcrum.site/2"),
        (("role", "rule"), "does not describe a site"),
        (("=", ":"), "does not describe a site"),
    ],
)
def test_a_site_file_that_is_wrong_says_so(silo, change, message):
    path = silo / "site.toml"
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(DataError, match=message):
        read_site(silo, "silo")


def test_a_missing_site_file_says_so(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_site(tmp_path, "silo")


def test_site_files_are_read_as_they_were_written():
    options = {"data": 'quo"ted\\', "steps": 3, "rate": 0.5, "deep": True, "classes": ["a", "b"]}
    settings = SiteSettings(format=FORMAT, role="server", name="s", issuer="k", train="m", options=options)
    import tomllib

    import msgspec

    assert msgspec.convert(tomllib.loads(site_toml(settings)), SiteSettings) == settings
    with pytest.raises(DataError, match="an option must be"):
        site_toml(SiteSettings(format=FORMAT, role="server", name="s", issuer="k", options={"a": None}))


def module(folder, monkeypatch, body):
    (folder / "their_training.py").write_text(textwrap.dedent(body))
    monkeypatch.syspath_prepend(str(folder))
    sys.modules.pop("their_training", None)
    return load_learner("their_training")


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("{'other': model['w']}", "arrays"),
        ("{'w': model['w'][:1]}", "of shape"),
        ("{'w': model['w'] * 1j}", "complex128"),
        ("{'w': ['1', '2', '3']}", "it is real numbers of shape"),
    ],
)
def test_what_training_returns_must_fit_the_model(tmp_path, monkeypatch, returned, message):
    learner = module(
        tmp_path,
        monkeypatch,
        f"""
        def start(options): return {{}}
        def train(model, assignment): return {returned}
        """,
    )
    with pytest.raises(DataError, match=message):
        learner.update({"w": np.zeros(3)}, Assignment(silo="a", round_number=1, plan=None, seed=0, options={}))


def test_training_cannot_change_the_global_model_in_place(tmp_path, monkeypatch):
    learner = module(
        tmp_path,
        monkeypatch,
        """
        def start(options): return {}
        def train(model, assignment):
            model["w"] += 1
            return model
        """,
    )
    model = {"w": np.zeros(3)}
    update = learner.update(model, Assignment(silo="a", round_number=1, plan=None, seed=0, options={}))
    assert update["w"].tolist() == [1, 1, 1]
    assert model["w"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("declared", "shapes", "classes"),
    [
        ("", {"w": (5, 2)}, None),
        ("SOFTMAX_HEAD = 'w'", {"w": (5, 2)}, 2),
        ("SOFTMAX_HEAD = ('w', 'b')", {"w": (3, 5, 4), "b": (4,)}, 4),
        ("SOFTMAX_HEAD = ('b', 'w')", {"w": (5, 4), "b": (4,)}, 4),
        ("SOFTMAX_HEAD = ()", {"w": (5, 2)}, None),
    ],
)
def test_a_training_module_may_say_that_its_model_is_a_softmax_head(tmp_path, monkeypatch, declared, shapes, classes):
    learner = module(tmp_path, monkeypatch, f"{declared}\nstart = train = print")
    assert learner.classes({name: np.zeros(shape) for name, shape in shapes.items()}) == classes


@pytest.mark.parametrize(
    ("declared", "shapes", "message"),
    [
        ("'w'", {"w": (5, 2), "b": (2,)}, "SOFTMAX_HEAD names w, and the model has w, b. Name every array"),
        ("'v'", {"w": (5, 2)}, "SOFTMAX_HEAD names v, and the model has w"),
        ("('w', 'b')", {"w": (5, 2), "b": (3,)}, "whose last axis are the classes, two or more, got"),
        ("'w'", {"w": (5, 1)}, "two or more"),
        ("'w'", {"w": ()}, "two or more"),
        ("['w']", {"w": (5, 2)}, "must be names of arrays, got"),
        ("(1,)", {"w": (5, 2)}, "must be names of arrays, got"),
        ("None", {"w": (5, 2)}, "must be names of arrays, got None"),
    ],
)
def test_a_head_that_the_model_is_not_is_told_in_one_line(tmp_path, monkeypatch, declared, shapes, message):
    with pytest.raises(DataError, match=message) as caught:
        module(tmp_path, monkeypatch, f"SOFTMAX_HEAD = {declared}\nstart = train = print").classes(
            {name: np.zeros(shape) for name, shape in shapes.items()}
        )
    assert "\n" not in str(caught.value)


def test_the_built_in_training_declares_its_head():
    learner = load_learner("fulcrum.engines.built_in_training")
    assert learner.classes(learner.starting_model({"data": "digits"})) == 2


def test_a_training_module_without_its_functions_is_named():
    with pytest.raises(DataError, match="'json' has no function start"):
        load_learner("json")
    with pytest.raises(DataError, match="cannot be imported"):
        load_learner("no_such_module")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def start(options:\n", r"cannot be imported: .*\(their_training\.py, line 1\)"),
        ("import no_such_package\n", "cannot be imported: No module named 'no_such_package'"),
        ("from json import no_such_name\n", "cannot import name 'no_such_name'"),
        ("import sys\nsys.exit(3)\n", "cannot be imported: SystemExit: 3"),
        ("raise SystemExit\n", "cannot be imported: SystemExit. Install"),
        ("1 / 0\n", "cannot be imported: ZeroDivisionError: division by zero"),
        ("raise ValueError('two\\nlines')\n", "cannot be imported: ValueError: two lines"),
        ("import asyncio\nraise asyncio.CancelledError\n", "cannot be imported: CancelledError"),
    ],
)
def test_a_training_module_that_cannot_be_imported_is_told_in_one_line(tmp_path, monkeypatch, body, message):
    with pytest.raises(DataError, match=message) as caught:
        module(tmp_path, monkeypatch, body)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return None", "must return a dict of named arrays, got NoneType"),
        ("return [1.0]", "must return a dict of named arrays, got list"),
        ("return {0: [1.0]}", "must return a dict of named arrays, got dict"),
        ("return {'w': [[1.0], [1.0, 2.0]]}", "function start failed: ValueError"),
        ("return 1 / 0", "function start failed: ZeroDivisionError: division by zero"),
        ("raise SystemExit", "function start failed: SystemExit"),
        ("raise KeyError('records')", "function start failed: KeyError: 'records'"),
    ],
)
def test_a_start_that_gives_no_model_is_told_in_one_line(tmp_path, monkeypatch, body, message):
    learner = module(tmp_path, monkeypatch, f"def start(options): {body}\ndef train(model, assignment): return model\n")
    with pytest.raises(DataError, match=message) as caught:
        learner.starting_model({})
    assert "\n" not in str(caught.value)


def test_the_built_in_training_refuses_unknown_options(silo):
    with pytest.raises(DataError, match="knows no option 'depth'"):
        start({"depth": 3})


def test_the_built_in_training_learns(silo, model):
    plan = read_site(silo, "silo").plan
    assignment = Assignment(silo="a", round_number=1, plan=plan, seed=0, options={})
    trained = train(model, assignment)
    assert evaluate(trained, assignment)["accuracy"] > evaluate(model, assignment)["accuracy"]


HOLDING = """
import sys, time
from fulcrum.ledger.ledger import Ledger

with Ledger.open(sys.argv[1], silo="lyon"):
    print("held", flush=True)
    time.sleep(1.0)
"""


def test_a_file_that_another_process_of_the_site_is_about_to_let_go_is_waited_for(tmp_path):
    path = tmp_path / "lyon.ledger"
    other = subprocess.Popen([sys.executable, "-c", HOLDING, str(path)], stdout=subprocess.PIPE, text=True)
    with other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(LedgerInUseError):
            Ledger.open(path, silo="lyon")
        with once_free(lambda: Ledger.open(path, silo="lyon")) as ledger:
            assert ledger.silo == "lyon"


@pytest.mark.parametrize("kind", ["ledger", "region"])
def test_a_file_that_is_never_let_go_is_given_up(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("fulcrum.roles.site._LONGEST_WAIT", 0.3)
    opening = {
        "ledger": lambda: Ledger.open(tmp_path / "file", silo="lyon"),
        "region": lambda: RegionFile.bound(tmp_path / "file", region="north", plan_digest="p"),
    }[kind]
    held, tries = opening(), []
    with pytest.raises(FileInUseError, match=r"is open in this process\. Close it first"):
        once_free(lambda: tries.append(1) or opening())
    assert len(tries) > 1
    held.close()
    once_free(opening).close()
