"""Silos and regions keep their names; engines use technical names, in kits, certificates, logs and reports."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import fulcrum
from fulcrum.core.silo.site import read_site
from fulcrum.engines.engine import engine_named
from fulcrum.engines.local_sites import free_port
from fulcrum.engines.site_folders import BUILT_IN, Deployment
from fulcrum.planning.site_names import is_technical, technical_name, technical_names
from fulcrum.readers.federation_csv import federation_csv
from fulcrum.readers.federation_reader import read_federation
from fulcrum.views.terminal.silo_columns import silo_table

ROSTER = """silo,records,region,site
Tübingen,200,Baden-Württemberg,
Ulm,220,Baden-Württemberg,ulm-west
Würzburg,180,Bayern,
"St. Georg, Haus 2",190,Bayern,
"""
AGGREGATION = {"nvflare": "trusted", "flower": "masked"}


@pytest.fixture(params=["flower", "nvflare"])
def engine(request):
    pytest.importorskip({"flower": "flwr"}.get(request.param, request.param))
    pytest.importorskip("cryptography")
    return engine_named(request.param)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "silos.csv"
    path.write_text(ROSTER, encoding="utf-8")
    return path


def planned(table, aggregation="trusted", **settings):
    return fulcrum.plan(
        table, rounds=2, epsilon=2.0, parameters=34, purpose="deployment", aggregation=aggregation, **settings
    )


@pytest.mark.parametrize(
    ("name", "technical"),
    [
        ("lille", "lille"),
        ("Baden-Württemberg", "Baden-Wurttemberg"),
        ("Île-de-France", "Ile-de-France"),
        ("Großhadern", "Grosshadern"),
        ("Łódź", "Lodz"),
        ("Ærø", "Aero"),
        ("Москва", "Moskva"),
        ("Αθήνα", "Athina"),
        ("St. Mary's (west)", "St-Mary-s-west"),
        ("a.1", "a-1"),
    ],
)
def test_a_name_is_transliterated(name, technical):
    assert technical_name(name) == technical


def test_every_technical_name_is_one_that_an_engine_accepts_and_stays_as_it_is():
    for name in ("東京", "大阪", "🏥", "...", "--", "é" * 300, "a" * 64, "한국 서울", "_x", "١٢٣"):
        technical = technical_name(name)
        assert is_technical(technical), technical
        assert technical_name(technical) == technical
    assert technical_name("東京") != technical_name("大阪")


def test_the_column_site_reaches_the_plan_file_and_comes_back(table, tmp_path):
    plan = planned(table)
    fulcrum.save_plan(plan, tmp_path / "plan.json")
    again = fulcrum.read_plan(tmp_path / "plan.json")
    expected = {
        "Baden-Württemberg": "Baden-Wurttemberg",
        "Bayern": "Bayern",
        "Tübingen": "Tubingen",
        "Ulm": "ulm-west",
        "Würzburg": "Wurzburg",
        "St. Georg, Haus 2": "St-Georg-Haus-2",
    }
    assert technical_names(again.federation) == technical_names(plan.federation) == expected
    assert all(check.holds for check in fulcrum.verify(again))
    (tmp_path / "copy.csv").write_text(federation_csv(again.federation), encoding="utf-8")
    assert technical_names(read_federation(tmp_path / "copy.csv")) == expected


def test_a_plan_without_the_column_site_has_the_digest_of_before(table, tmp_path):
    plain = tmp_path / "plain.csv"
    plain.write_text("silo,records,region\na,200,north\nb,220,south\n")
    fulcrum.save_plan(planned(plain), tmp_path / "p.json")
    assert b'"site"' not in (tmp_path / "p.json").read_bytes()
    assert read_federation(table).digest == read_federation(without_site(table)).digest


def without_site(table):
    path = table.with_name("without.csv")
    path.write_text(ROSTER.replace(",site", "").replace(",ulm-west", "").replace(",\n", "\n"), encoding="utf-8")
    return path


def test_a_column_site_without_a_column_silo_is_still_a_word_for_silo(tmp_path):
    (tmp_path / "sites.csv").write_text("site,records,region\nlille,10,north\nlyon,10,south\n")
    assert read_federation(tmp_path / "sites.csv").silo_names.tolist() == ["lille", "lyon"]


def test_kits_have_technical_names_and_sites_their_own(engine, table, tmp_path):
    plan = planned(table, AGGREGATION[engine.name])
    deployment = Deployment(plan=plan, train=BUILT_IN, options={"data": "digits"})
    engine.write_kits(deployment, tmp_path / "kits")
    sites = engine.sites(deployment)
    assert all(map(is_technical, sites))
    assert {"Tubingen", "ulm-west", "St-Georg-Haus-2"} <= set(sites)
    names = {read_site(engine.site_folder(tmp_path / "kits", site)).settings.name for site in sites}
    assert {"Tübingen", "Ulm", "St. Georg, Haus 2"} <= names
    readme = (tmp_path / "kits" / "Tubingen" / "README.md").read_text(encoding="utf-8")
    assert readme.startswith("# Tübingen: a silo\n\nThe ")
    assert "`Tubingen`" in readme
    assert "Tübingen" in (tmp_path / "kits" / "README.md").read_text(encoding="utf-8") or engine.name == "flower"


def test_a_site_knows_the_technical_names_of_its_neighbours_alone(table, tmp_path):
    pytest.importorskip("nvflare")
    flare = engine_named("nvflare")
    flare.write_kits(Deployment(plan=planned(table), train=BUILT_IN), tmp_path / "kits")

    def names(site):
        return tomllib.loads((flare.site_folder(tmp_path / "kits", site) / "site.toml").read_text())["engine_names"]

    assert names("ulm-west") == {"Ulm": "ulm-west", "Baden-Württemberg": "Baden-Wurttemberg"}
    assert names("Bayern") == {"Würzburg": "Wurzburg", "St. Georg, Haus 2": "St-Georg-Haus-2"}
    assert names("server") == {"Baden-Württemberg": "Baden-Wurttemberg"}


def test_the_report_shows_the_technical_names_of_a_deployment(table):
    headings = {column["heading"]: column["values"] for column in silo_table(planned(table))["columns"]}
    assert headings["silo"][0] == "Tübingen"
    assert headings["site"] == ["Tubingen", "ulm-west", "Wurzburg", "St-Georg-Haus-2"]


@pytest.mark.engines
def test_a_federation_with_accents_runs_to_its_last_round(engine, table, tmp_path):
    plan = planned(table, AGGREGATION[engine.name])
    deployment = Deployment(plan=plan, train=BUILT_IN, options={"data": "digits"})
    here = replace(deployment, host=engine.host_here, port=free_port(following=1), runs_here=True, patience=60.0)
    engine.write_kits(here, tmp_path / "kits")
    done = engine.run_here(here, tmp_path / "kits", on_round=lambda _: None)
    assert [summary["round"] for summary in done.history] == [1, 2]
    assert all(summary["withheld"] == {} for summary in done.history if "withheld" in summary)
    assert not done.failed
    assert Path(tmp_path / "kits" / "Tubingen").is_dir()


def test_a_silo_with_the_name_of_flares_administrator_has_a_kit_of_its_own(tmp_path):
    pytest.importorskip("nvflare")
    pytest.importorskip("cryptography")
    (tmp_path / "silos.csv").write_text("silo,records,region\nadmin@fulcrum.local,200,north\nb,210,north\n")
    deployment = Deployment(plan=planned(tmp_path / "silos.csv"), train=BUILT_IN)
    engine_named("nvflare").write_kits(deployment, tmp_path / "kits")
    assert (tmp_path / "kits" / "admin-fulcrum-local" / "local" / "fulcrum" / "site.key").exists()
    assert not (tmp_path / "kits" / "admin" / "local" / "fulcrum").exists()
