"""A silo answers whatever its records do to its training module: when it is imported, and when it leaves files open."""

import os
import resource
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from site_folder import in_process, released, rewritten

from fulcrum.core.messages.model_message import pack_model
from fulcrum.core.silo.silo_release import SiloStation
from fulcrum.core.silo.site import read_site
from fulcrum.core.training.assignment import TrainingFailedError, check_installed
from fulcrum.core.training.in_process_training import InProcessTraining
from fulcrum.errors import DataError, error_messages

pytest.importorskip("cryptography", reason="needs the extra secure")


@pytest.fixture
def few_files():
    """Lets this process open some 200 files more, as an operating system lets it open a thousand in all."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.open(os.devnull, os.O_RDONLY)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(probe + 200, before[0]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("records", [3, 10_000])
def test_a_file_left_open_for_each_record_does_not_make_a_silo_decline(silo, model, few_files, records):
    left_open = []
    rewritten(silo, "policy = false", "policy = true")
    (silo / "policy.toml").write_text("largest_epsilon_above = 9\nlargest_epsilon_inside = 90\n")  # read again after it

    def train(given, assignment):
        while len(left_open) < records:
            left_open.append(os.open(os.devnull, os.O_RDONLY))
        return given

    station = in_process(silo, train)
    try:
        for number in (1, 2):
            station.answer(pack_model(model), number)
    finally:
        for file in left_open:
            os.close(file)
    assert released(silo) == [1, 2]


@pytest.mark.parametrize("kind", ["worker", "in process"])
def test_the_places_kept_for_the_ledger_are_given_back_after_every_round(silo, model, kind):
    module = "fulcrum.engines.built_in_training"
    station = SiloStation(read_site(silo, "silo")) if kind == "worker" else in_process(silo, module)
    counts = []
    for number in (1, 2, 3):
        station.answer(pack_model(model), number)
        counts.append(len(list(Path("/dev/fd").iterdir())))
    assert len(set(counts)) == 1


@pytest.mark.parametrize("clock", ["ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF"])
def test_no_clock_that_training_set_goes_on_into_the_release(silo, model, clock):
    """It would strike where the release is made, in a silo whose training took long."""
    which = getattr(signal, clock)

    def train(given, assignment):
        signal.setitimer(which, 3600)
        return given

    try:
        answered(silo, model, train)
        assert signal.getitimer(which) == (0.0, 0.0)
    finally:
        signal.setitimer(which, 0)


@pytest.mark.parametrize("hook", ["settrace", "setprofile"])
def test_a_limit_on_time_that_training_leaves_behind_does_not_strike_the_release(silo, model, hook):
    """Such limits look at every call, and raise once the time is up: here at the first call that releases."""
    before = sys.gettrace(), sys.getprofile()

    def limit(frame, event, argument):
        if frame.f_code.co_filename.endswith("releasing.py"):
            raise TimeoutError("training took too long")

    def train(given, assignment):
        getattr(sys, hook)(limit)
        return given

    try:
        answered(silo, model, train)
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])


@pytest.mark.parametrize("raised", [SystemExit(4), ValueError("again"), KeyboardInterrupt()])
def test_an_error_whose_own_text_fails_is_hidden(silo, model, caplog, raised):
    class Mute(Exception):
        def __str__(self):
            raise raised

    def train(given, assignment):
        raise Mute

    answered(silo, model, train)
    assert "training failed in round 1: zero plus noise is released in its place" in caplog.text
    assert "Mute" in caplog.text
    assert released(silo) == [1]


def test_the_report_of_a_worker_that_the_trainer_itself_asks_is_kept(silo, model, caplog):
    def train(given, assignment):
        raise TrainingFailedError("it failed", report="line 7 of their module")

    answered(silo, model, train)
    assert caplog.text.rstrip().endswith("line 7 of their module")


def test_the_words_of_a_failure_are_read_before_training_takes_all_files(few_files):
    class Trainer:
        def update(self, model, assignment):
            while True:
                files.append(os.open(os.devnull, os.O_RDONLY))

    files = []
    error_messages.cache_clear()
    try:
        with pytest.raises(TrainingFailedError, match="Too many open files") as caught:
            InProcessTraining(Trainer()).update({}, None)
    finally:
        for file in files:
            os.close(file)
    assert str(caught.value) == caught.value.details["reason"]  # and not the code, as of a message that is missing


class Unreported(TrainingFailedError):
    """An error of an app whose report depends on records."""

    @property
    def report(self):
        raise ZeroDivisionError

    @report.setter
    def report(self, text):
        pass


@pytest.mark.parametrize("made", [lambda: TrainingFailedError.__new__(TrainingFailedError), lambda: Unreported("no")])
def test_an_error_of_the_silos_own_type_that_training_makes_is_hidden(silo, model, caplog, made):
    def train(given, assignment):
        raise made()

    answered(silo, model, train)
    assert "training failed in round 1: zero plus noise is released in its place" in caplog.text
    assert released(silo) == [1]


@pytest.mark.parametrize("value", ["inf", "nan", "1e7", "-1.0"])
def test_a_limit_of_memory_that_no_process_has_is_told(silo, value):
    rewritten(silo, "training_gigabytes = 0.0", f"training_gigabytes = {value}")
    with pytest.raises(DataError, match=r"site\.toml does not describe a site: "):
        read_site(silo, "silo")


def answered(silo, model, train):
    """What a silo answers in the first round that trains so."""
    return in_process(silo, train).answer(pack_model(model), 1)


def trained_by(home, name):
    """Has a silo train by another module."""
    rewritten(home, "fulcrum.engines.built_in_training", name)
    return read_site(home, "silo")


@pytest.mark.parametrize("raised", ["ValueError('record 7 is negative')", "SystemExit(1)", "ImportError('no data')"])
@pytest.mark.parametrize("name", ["reads_records", "reads_much.training"])
def test_a_module_that_reads_records_when_it_is_imported_fails_unseen(silo, model, monkeypatch, caplog, name, raised):
    folder = silo.parent / name.replace(".", "-")
    file = folder / f"{name.replace('.', '/')}.py"
    file.parent.mkdir(parents=True)
    failing = file.with_name("__init__.py") if "." in name else file
    file.write_text("def start(options): return {}\ndef train(model, assignment): return model\n")
    failing.write_text(f"raise {raised}\n")
    monkeypatch.syspath_prepend(folder)
    station = SiloStation(trained_by(silo, name))
    for number in (1, 2):
        station.answer(pack_model(model), number)
        assert f"training failed in round {number}: zero plus noise is released in its place" in caplog.text


def test_a_module_that_is_not_installed_is_told_and_nothing_is_released(silo):
    with pytest.raises(DataError, match="there is no training module 'no_such' at this site"):
        SiloStation(trained_by(silo, "no_such"))
    with pytest.raises(DataError, match=r"no training module 'no_such\.module' at this site"):
        check_installed("no_such.module")


PACKAGES = {
    "well behaved": "",
    "ends its process": "import os; os._exit(3)",
    "hangs": "import time; time.sleep(600)",
    "crashes": "import ctypes; ctypes.string_at(0)",
    "leaves an alarm": "import signal; signal.setitimer(signal.ITIMER_REAL, 0.2)",
    "interrupts": "raise KeyboardInterrupt",
    "puts a Path on the path": "import sys, pathlib; sys.path.insert(0, pathlib.Path(__file__).parent)",
}
FAILING = {"ends its process", "hangs", "crashes", "interrupts"}

IN_A_PACKAGE = """
import sys
from pathlib import Path
from fulcrum.core.messages.model_message import pack_model
from fulcrum.core.silo.silo_release import SiloStation
from fulcrum.core.silo.site import read_site
from fulcrum.engines.built_in_training import start

sys.path.insert(0, Path(sys.argv[1]))
station = SiloStation(read_site(Path(sys.argv[1]), "silo"))
for number in (1, 2):
    station.answer(pack_model(start({})), number)
print("answered", *(name for name in sys.modules if name.startswith("hospital")))
"""


@pytest.mark.parametrize("conduct", PACKAGES)
def test_the_package_that_a_module_is_in_runs_in_the_worker_alone(silo, conduct):
    package = silo.parent / "installed" / "hospital"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGES[conduct] + "\n")
    (package / "training.py").write_text("def start(options): return {}\ndef train(model, assignment): return model\n")
    trained_by(silo, "hospital.training")
    rewritten(silo, "training_seconds = 0.0", "training_seconds = 3.0")
    path = os.pathsep.join([str(package.parent), *sys.path])
    silo_process = [sys.executable, "-c", IN_A_PACKAGE, str(silo)]
    done = subprocess.run(
        silo_process, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "answered\n"), done.stderr
    assert ("training failed" in done.stderr) == (conduct in FAILING), done.stderr
    assert released(silo) == [1, 2]


def test_a_module_is_found_in_packages_of_any_kind_and_not_where_there_is_none(tmp_path, monkeypatch):
    (tmp_path / "wide" / "deep" / "folder").mkdir(parents=True)  # packages without __init__.py
    (tmp_path / "wide" / "deep" / "folder" / "training.py").touch()
    with zipfile.ZipFile(tmp_path / "zipped.zip", "w") as archive:
        archive.writestr("zipped_package/__init__.py", "1 / 0")
        archive.writestr("zipped_package/training.py", "1 / 0")
    monkeypatch.syspath_prepend(tmp_path / "zipped.zip")
    monkeypatch.syspath_prepend(tmp_path)
    for name in (
        "wide.deep.folder.training",
        "zipped_package.training",
        "wide.deep",
        "fulcrum.engines.built_in_training",
    ):
        check_installed(name)
    missing = ("wide.deep.training", "wide.deep.folder.training.more", "zipped_package.other", "json.decoder.more")
    for name in (*missing, "", ".", "wide.", ".wide", "wide..deep", "__main__.more"):
        with pytest.raises(DataError, match="there is no training module"):
            check_installed(name)
    assert not {"wide", "zipped_package"} & set(sys.modules)
