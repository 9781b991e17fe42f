import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "network_at_scale.py"


def test_silos_stand_in_regions_of_lognormal_size():
    spec = importlib.util.spec_from_file_location("network_at_scale", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    federation = example.lognormal_regions(1000)
    members = np.bincount(federation.innermost.parent_of, minlength=example.REGIONS)
    assert (members.sum(), members.min() >= 1) == (1000, True)
    assert members.max() > 4 * np.median(members)


@pytest.mark.skipif(not os.environ.get("FULCRUM_DATA"), reason="the feature files are not here")
def test_the_example_tells_network_and_head_for_every_way():
    command = [sys.executable, str(EXAMPLE), "--silos", "100", "--epsilon", "50", "--hidden", "4", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)
    assert [row["way"] for row in rows] == ["uniform", "optimal", "least-noise", "joint"]
    assert rows[3]["head"] > rows[0]["head"]
    assert rows[0]["head without privacy"] > 0.7
    assert "round 20 of 20" in done.stderr
