"""The example in containers: files that name each other, and a context that has all that the image copies."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "docker"
yaml = pytest.importorskip("yaml")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    pytest.importorskip("nvflare")
    pytest.importorskip("cryptography")
    folder = tmp_path_factory.mktemp("docker")
    for path in EXAMPLE.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "prepare.sh"],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def services():
    return yaml.safe_load((EXAMPLE / "compose.yaml").read_text())["services"]


@pytest.mark.engines
def test_every_site_has_a_service_with_its_own_kit_alone(prepared, services):
    sites = {path.parent.name for path in prepared.glob("kits/*/start.sh")}
    assert set(services) == sites | {"console"}
    assert len(sites) == 7
    for site in sites:
        assert services[site]["volumes"] == [f"./kits/{site}:/site"]
        assert services[site]["environment"] == {"SITE": site}
    assert "server:8002" in (prepared / "kits" / "lille" / "startup" / "fed_client.json").read_text()


@pytest.mark.engines
def test_the_context_has_everything_that_the_image_copies_and_no_key(prepared, tmp_path):
    rules = (EXAMPLE / ".dockerignore").read_text().split()
    assert rules[0] == "*"
    kept = [rule[1:] for rule in rules[1:]]
    with tarfile.open(tmp_path / "context.tar", "w") as context:
        for path in sorted(prepared.rglob("*")):
            name = path.relative_to(prepared).as_posix()
            if path.is_file() and any(fnmatch(name, rule) or name.startswith(f"{rule}/") for rule in kept):
                context.add(path, name)
    with tarfile.open(tmp_path / "context.tar") as context:
        names = context.getnames()
    copied = re.findall(r"^COPY (\S+) ", (EXAMPLE / "Dockerfile").read_text(), re.M)
    assert copied
    for source in copied:
        assert any(name == source or name.startswith(f"{source}/") for name in names), source
    assert sum(name.endswith(".whl") for name in names) == 1
    assert not any(name.endswith((".key", "site.toml")) for name in names)


def test_the_scripts_are_correct_for_the_shell():
    for script in ("prepare.sh", "init.sh", "site.sh"):
        assert subprocess.run(["bash", "-n", str(EXAMPLE / script)], check=False).returncode == 0


@pytest.mark.engines
@pytest.mark.parametrize("site", ["lille", "north"])
def test_the_start_of_a_site_makes_no_records(prepared, tmp_path, site):
    """A new kit, as for a second plan, would begin a silo's spending again at zero."""
    kit = shutil.copytree(prepared / "kits" / site, tmp_path / site)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", str(EXAMPLE / "site.sh")],
        cwd=kit,
        env=os.environ | {"PATH": path, "SITE": site},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, list((kit / "local" / "fulcrum" / "state").iterdir())) == (2, [])
    assert not list(kit.rglob("initialised.json"))
    assert f"{site} has no records" in done.stderr


def test_every_site_but_the_server_has_the_step_that_makes_its_records(services):
    sites = re.findall(r"^for site in (.*); do$", (EXAMPLE / "init.sh").read_text(), re.M)[0].split()
    assert set(sites) == set(services) - {"server", "console"}
