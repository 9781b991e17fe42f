"""Canaries through Flower: silos as virtual nodes on Ray, and what the sums that the server unmasked then hold."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs the extra flower")
pytest.importorskip("flwr", reason="needs the extra flower")

SITE_CODE = Path(__file__).parent / "site"
ROWS = ["a,300,north", "b,200,north", "c,100,north", "d,150,north", "e,200,south", "f,220,south"]

DEPLOYED = ("--epsilon", "3", "--purpose", "deployment", "--parameters", "3000")

# Ray keeps its processes for as long as the one that began it lives. It begins honestly; its nodes need not.
DRIVER = """
import json, os, sys
from fulcrum.cli.command_line import run
os.environ["FULCRUM_TEST_CONDUCT"] = sys.argv[1]
sys.exit(run(sys.argv[2:]))
"""


def audited(folder, *options, conduct=""):
    """Returns the code and the probes of an audit through Flower."""
    (folder / "fed.csv").write_text("silo,records,region\n" + "\n".join(ROWS) + "\n")
    path = os.pathsep.join([str(SITE_CODE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "FULCRUM_TEST_SILENT": "b"}
    planning = ["plan", "fed.csv", "--rounds", "3", "--aggregation", "masked", *(options or ("--epsilon", "3"))]
    given = {"cwd": folder, "env": environment, "capture_output": True, "text": True}
    subprocess.run([sys.executable, "-m", "fulcrum.cli", *planning, "-o", "plan.json"], check=True, **given)
    auditing = ["audit", "plan.json", "--engine", "flower", "--trials", "1000", "--seed", "1", "--format", "json"]
    done = subprocess.run([sys.executable, "-c", DRIVER, conduct, *auditing, "--confidence", "0.9999"], **given)
    assert "Flower, run 1: 3 of 3" in done.stderr, done.stderr
    found = json.loads(done.stdout)
    return done.returncode, {probe["node"]: probe for probe in found["probes"] if probe["of"] == "Flower"}


@pytest.mark.parametrize("options", [(), DEPLOYED])
def test_sums_of_canaries_hold_the_noise_of_the_plan(tmp_path, options):
    code, found = audited(tmp_path, *options)
    assert code == 0
    assert {node: probe["verdict"] for node, probe in found.items()} == {"north": "consistent", "south": "consistent"}
    assert all(probe["values"] >= 8_192 for probe in found.values())
    assert all(probe["noise_ratio"] == pytest.approx(1, abs=0.05) for probe in found.values())


def test_a_silo_whose_noise_is_missing_is_found_in_its_region(tmp_path):
    code, found = audited(tmp_path, *DEPLOYED, conduct="silent")
    assert code == 1
    assert {node: probe["verdict"] for node, probe in found.items()} == {"north": "violated", "south": "consistent"}
    assert "as wide as the plan says" in found["north"]["reasons"][0]


def test_the_sum_of_the_whole_federation_is_one_group(tmp_path):
    code, found = audited(tmp_path, "--epsilon", "federation=3")
    assert (code, list(found)) == (0, ["federation"])
