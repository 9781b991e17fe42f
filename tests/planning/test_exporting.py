import csv
import io
import json
import tomllib

import pytest
from error_codes import coded

from fulcrum.errors import ParameterError
from fulcrum.planning.files.exports import export_plan
from fulcrum.planning.planner import plan
from fulcrum.readers.federation import Federation

FEDERATION = Federation.from_sizes(
    {"north": {'say "hi"': 120, "Łódź": 80}, "south": {"a,b": 300}}, outer={"country": {"all": ["north", "south"]}}
)


@pytest.fixture
def made():
    return plan(FEDERATION, rounds=10, epsilon=1.0)


def test_csv_has_one_row_a_silo_with_every_observer(made):
    rows = list(csv.DictReader(io.StringIO(export_plan(made, "csv"))))
    assert [row["silo"] for row in rows] == ['say "hi"', "Łódź", "a,b"]
    assert [row["country"] for row in rows] == ["all"] * 3
    assert [float(row["noise_multiplier"]) for row in rows] == made.noise_multiplier.tolist()
    assert all(float(row["epsilon_region"]) <= 1.0 for row in rows)
    assert set(rows[0]) >= {"epsilon_silo", "epsilon_region", "epsilon_country", "epsilon_federation"}


def test_flower_settings_are_toml_with_one_node_config_a_silo(made):
    settings = tomllib.loads(export_plan(made, "flower"))
    config = settings["tool"]["flwr"]["app"]["config"]
    assert config["num-server-rounds"] == 10
    assert config["fulcrum-plan-digest"] == made.digest
    nodes = settings["tool"]["fulcrum"]["node-config"]
    parsed = tomllib.loads(
        nodes["Łódź"]
        .replace(" region=", "\nregion=")
        .replace(" weight=", "\nweight=")
        .replace(" noise-multiplier=", "\nnoise-multiplier=")
    )
    assert parsed == {
        "silo": "Łódź",
        "region": "north",
        "weight": 0.16,
        "noise-multiplier": made.noise_multiplier[1],
    }


def test_nvflare_settings_name_each_parents_members(made):
    settings = json.loads(export_plan(made, "nvflare"))
    assert settings["sites"]["a,b"]["parent"] == "south"
    assert settings["aggregators"]["north"]["members"] == ['say "hi"', "Łódź"]
    assert settings["plan_digest"] == made.digest


def test_aggregators_carry_the_noise_where_they_inject_it():
    made = plan(FEDERATION, rounds=10, epsilon=1.0, injection="aggregator")
    settings = json.loads(export_plan(made, "nvflare"))
    assert settings["sites"]["a,b"]["noise_multiplier"] == 0
    assert settings["aggregators"]["south"]["noise_multiplier"] > 0
    rows = list(csv.DictReader(io.StringIO(export_plan(made, "csv"))))
    assert [row["epsilon_silo"] for row in rows] == ["inf"] * 3
    assert [float(row["region_noise_multiplier"]) for row in rows] == made.aggregator_noise_multiplier[
        [0, 0, 1]
    ].tolist()
    flower = tomllib.loads(export_plan(made, "flower"))
    assert flower["tool"]["fulcrum"]["aggregator-noise-multiplier"]["south"] == made.aggregator_noise_multiplier[1]


def test_an_unknown_export_is_refused(made):
    with pytest.raises(ParameterError, check=coded("errors.name-unknown", noun="export", name="flowr")):
        export_plan(made, "flowr")


def test_settings_carry_weights_clip_share_and_server_where_they_are_not_the_papers():
    made = plan(FEDERATION, rounds=10, epsilon=1.0, parameters=34, recipe="joint")
    assert made.clip_share < 1
    config = tomllib.loads(export_plan(made, "flower"))["tool"]["flwr"]["app"]["config"]
    assert config["fulcrum-clip-share"] == made.clip_share
    assert (config["fulcrum-server"], config["fulcrum-shrink"]) == ("random-effects", "even-heads")
    settings = json.loads(export_plan(made, "nvflare"))
    assert (settings["clip_share"], settings["server"], settings["shrink"]) == (
        made.clip_share,
        "random-effects",
        "even-heads",
    )
    assert [site["weight"] for site in settings["sites"].values()] == made.weights.tolist()
    assert export_plan(made, "flower").count("weight=0.2 ") == 2  # equal within the region, whatever the sizes
    paper = plan(FEDERATION, rounds=10, epsilon=1.0, parameters=34)
    for to in ("flower", "nvflare"):
        assert not any(word in export_plan(paper, to) for word in ("share", "shrink", "random", "fulcrum-server"))
