"""A kit carries the wheel of Fulcrum and a list of versions and hashes: no index has to know Fulcrum."""

import hashlib
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import wheel as wheel_checks
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fulcrum.engines import installation
from fulcrum.engines.installation import LIST, versions_of, write_installation, write_wheel
from fulcrum.engines.kit_templates import kit_text

ROOT = Path(__file__).parents[2]
EXTRAS = {"nvflare": {"nvflare", "secure", "fast"}, "flower": {"flower", "fast"}}
ENGINES = sorted(EXTRAS)
PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[a-z,-]+\])?==(\S+)(?: ; .*?)? \\$", re.M)


def empty_environment(folder, *, pip=False):
    venv.create(folder, with_pip=pip)
    return folder / "bin" / "python"


def run(*command, cwd):
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install_fulcrum_alone(kit, python):
    """Installs the first entry of a kit's list, the wheel of Fulcrum, without the packages that it needs."""
    (kit / "alone.txt").write_text("\n".join((kit / "install" / LIST).read_text().split("\n", 2)[:2]) + "\n")
    command = [sys.executable, "-m", "pip", "--isolated", "--python", str(python), "install", "--no-index", "--no-deps"]
    command += ["--require-hashes", "-r", "alone.txt"]
    return subprocess.run(command, cwd=kit, capture_output=True, text=True, check=False)


def test_the_wheel_of_a_kit_is_whole_and_has_the_same_hash_each_time(tmp_path):
    first, second = (write_wheel(folder) for folder in (tmp_path / "a", tmp_path / "b") if not folder.mkdir())
    with zipfile.ZipFile(first) as opened:
        assert wheel_checks.lacking(opened.namelist()) == []
        assert opened.testzip() is None
    assert first.read_bytes() == second.read_bytes()


def test_the_wheel_holds_no_file_that_is_neither_module_nor_resource(tmp_path, monkeypatch):
    package = tmp_path / "fulcrum"
    own = ["__init__.py", "py.typed", "core/silo.py", "error_messages/core.toml", "engines/templates/flower/run.sh"]
    secret = ["issuer.key", "data/patients.csv", "site.toml", "engines/templates/site.key", ".env", ".backup/silo.py"]
    secret += ["plan.json", "core/silo.py~", "core/.silo.py.swp", "core/lille.ledger"]
    for name in own + secret:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(name)
    monkeypatch.setattr(installation, "_package", lambda: package)
    with zipfile.ZipFile(write_wheel(tmp_path)) as opened:
        inside = {name.removeprefix("fulcrum/") for name in opened.namelist() if ".dist-info/" not in name}
    assert inside == set(own)


def test_a_kit_installs_into_an_empty_environment_without_any_index(tmp_path):
    kit = tmp_path / "kit"
    kit.mkdir()
    write_installation(kit, "nvflare")
    python = empty_environment(tmp_path / "empty")
    done = install_fulcrum_alone(kit, python)
    assert done.returncode == 0, done.stderr
    place = run(python, "-c", "import fulcrum; print(fulcrum.__file__)", cwd=tmp_path)
    assert Path(place.strip()).is_relative_to(tmp_path / "empty")
    assert (python.parent / "fulcrum").exists()


def test_a_changed_wheel_is_refused_by_its_hash(tmp_path):
    write_installation(tmp_path, "flower")
    (wheel,) = (tmp_path / "install").glob("*.whl")
    with zipfile.ZipFile(wheel, "a") as opened:
        opened.writestr("fulcrum/planted.py", "")
    python = empty_environment(tmp_path / "empty")
    done = install_fulcrum_alone(tmp_path, python)
    assert (done.returncode, "DO NOT MATCH THE HASHES" in done.stderr) == (1, True), done.stderr


def test_every_kit_of_a_federation_has_the_same_wheel(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    made = write_installation(one, "nvflare")
    copied = write_installation(two, "nvflare", wheel=made)
    assert hashlib.sha256(made.read_bytes()).digest() == hashlib.sha256(copied.read_bytes()).digest()
    assert (one / "install" / LIST).read_text() == (two / "install" / LIST).read_text()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_list_of_an_engine_has_a_hash_for_each_version_and_no_address(engine):
    text = versions_of(engine)
    assert "://" not in text
    assert "index" not in text
    assert "--find-links" not in text
    entries = text.replace(" \\\n    --hash", " --hash").strip().splitlines()
    assert len(entries) == len(PINNED.findall(text))
    assert all("--hash=sha256:" in entry for entry in entries)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_list_of_an_engine_satisfies_every_direct_dependency(engine):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = project["dependencies"] + [
        line for extra in EXTRAS[engine] for line in project["optional-dependencies"][extra]
    ]
    versions = {canonicalize_name(name): version for name, version in PINNED.findall(versions_of(engine))}
    for requirement in map(Requirement, needed):
        assert requirement.marker is None or requirement.marker.evaluate(default_environment())
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


def test_the_extra_all_has_every_extra_but_torch():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = map(Requirement, extras.pop("all"))
    assert everything.extras == set(extras) - {"torch"}


def command_of_kits():
    """The command that the README of a kit names."""
    return re.search(r"^    (pip install .*)$", kit_text("install.md"), re.M)[1].split()


def test_the_command_of_kits_resolves_no_dependency_again():
    """Pip 23 looks for sqlalchemy beside a pinned sqlalchemy[asyncio], takes the newest, and finds no hash for it."""
    assert command_of_kits() == ["pip", "install", "--no-deps", "--require-hashes", "-r", f"install/{LIST}"]
    assert " ".join(command_of_kits()[2:]) in (ROOT / "examples/docker/Dockerfile").read_text()


@pytest.mark.engines
@pytest.mark.parametrize("engine", ENGINES)
def test_the_whole_list_installs_into_an_empty_environment(engine, tmp_path):
    write_installation(tmp_path, engine)
    python = empty_environment(tmp_path / "empty", pip=True)
    run(python, "-m", *command_of_kits(), "--quiet", cwd=tmp_path)
    run(python, "-m", "pip", "check", cwd=tmp_path)
    run(
        python.parent / "fulcrum", "plan", "consortium", "--rounds", "2", "--epsilon", "1", "-o", "p.json", cwd=tmp_path
    )
    assert (tmp_path / "p.json").exists()


@pytest.mark.parametrize("engine", ["flower", "nvflare"])
def test_a_silo_reads_that_the_wheel_is_code_of_the_maker_of_the_kit(engine):
    """The list of hashes comes from the maker too, and proves nothing about the wheel."""
    site = {"name": "lille", "site": "lille", "region": "north", "digest": "3f2a", "train": "", "keys_made": False}
    site["masked"] = engine == "flower"
    text = kit_text(f"{engine}/silo.md", **site)
    assert "The wheel is code of the maker of this kit" in text
