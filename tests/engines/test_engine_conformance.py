"""Every engine keeps the protocol `Engine`: what it refuses, what its kits hold, and what a run here leaves behind."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from error_codes import coded

import fulcrum
from fulcrum.core.silo.site import read_site
from fulcrum.engines.engine import engine_named, engine_names
from fulcrum.engines.local_sites import free_port
from fulcrum.engines.site_folders import BUILT_IN, Deployment
from fulcrum.errors import DataError, ParameterError, PlanError
from fulcrum.planning.engine_limits import SERVER

ROSTER = "silo,records,region\na1,200,north\na2,220,north\na3,180,north\na4,190,north\nb1,240,south\nb2,210,south\nb3,300,south\nb4,220,south\n"
AGGREGATIONS = {"nvflare": ("trusted", "masked"), "flower": ("masked",)}
"""The ways of making sums that an engine runs."""

WAYS = [(name, aggregation) for name in engine_names() for aggregation in AGGREGATIONS.get(name, ("trusted",))]


@pytest.fixture(params=WAYS, ids=" ".join)
def way(request):
    name, _ = request.param
    pytest.importorskip({"flower": "flwr"}.get(name, name))
    return request.param


@pytest.fixture
def engine(way):
    return engine_named(way[0])


@pytest.fixture
def aggregation(way):
    return way[1]


@pytest.fixture
def deployment(engine, aggregation, tmp_path):
    table = tmp_path / "silos.csv"
    table.write_text(ROSTER)
    plan = fulcrum.plan(table, rounds=2, epsilon=2.0, parameters=34, purpose="deployment", aggregation=aggregation)
    return Deployment(plan=plan, train=BUILT_IN, options={"data": "digits"})


def told_of(environment: Path) -> bytes:
    """Returns the command line and the environment of a process; nothing of one that is gone."""
    try:
        return environment.with_name("cmdline").read_bytes() + environment.read_bytes()
    except OSError:
        return b""


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_an_unknown_engine_is_refused_with_those_that_are_known():
    with pytest.raises(ParameterError, check=coded("errors.name-unknown", noun="engine", name="slurm")):
        engine_named("slurm")


def test_the_name_is_the_one_that_is_typed(engine):
    assert engine.name in engine_names()
    assert engine.title
    assert 0 < engine.port < 65_535


def test_a_plan_that_the_engine_cannot_run_is_refused_before_anything_is_written(engine, deployment, tmp_path):
    table = tmp_path / "twins.csv"  # no engine tells a silo from the server by anything but the name
    table.write_text(ROSTER + "server,10,north\n")
    plan = fulcrum.plan(table, rounds=2, epsilon=2.0, parameters=34, purpose="deployment", aggregation="trusted")
    unfit = replace(deployment, plan=plan)
    for refuse in (lambda: engine.check(unfit), lambda: engine.write_kits(unfit, tmp_path / "kits")):
        with pytest.raises(PlanError, check=coded("engine.plan-refused")):
            refuse()
    assert not (tmp_path / "kits").exists()


def test_a_research_plan_stays_on_this_machine(engine, aggregation, deployment, tmp_path):
    plan = fulcrum.plan(tmp_path / "silos.csv", rounds=2, epsilon=2.0, aggregation=aggregation)
    research = replace(deployment, plan=plan)
    engine.check(research)
    with pytest.raises(PlanError, check=coded("kit.plan-research")):
        engine.check(replace(research, host="fl.example.org"))


def test_every_site_has_a_kit_that_reads_as_a_site_of_the_signed_plan(engine, deployment, tmp_path):
    made = engine.write_kits(deployment, tmp_path / "kits")
    sites = engine.sites(deployment)
    assert sites[0] == SERVER
    assert len(set(sites)) == len(sites) == made["sites"]
    assert set(deployment.plan.federation.silo_names.tolist()) <= set(sites)
    for name in sites:
        site = read_site(engine.site_folder(tmp_path / "kits", name), deployment.sites[name])
        assert site.plan.digest == made["plan_digest"]
        assert site.settings.issuer == made["issuer"]
        assert site.settings.purpose == "deployment"
        assert (tmp_path / "kits" / name / "README.md").exists()
        assert (tmp_path / "kits" / name / "start.sh").stat().st_mode & stat.S_IXUSR


@pytest.mark.parametrize("server", ["sum", "momentum"])
def test_the_servers_kit_says_of_its_rule_what_the_rule_does(engine, aggregation, deployment, server, tmp_path):
    plan = fulcrum.plan(
        tmp_path / "silos.csv",
        rounds=2,
        epsilon=2.0,
        parameters=34,
        purpose="deployment",
        aggregation=aggregation,
        server=server,
    )
    engine.write_kits(replace(deployment, plan=plan), tmp_path / "kits")
    text = " ".join((tmp_path / "kits" / SERVER / "README.md").read_text().split())
    assert plan.server_rule.clause in text
    assert ("sums up" in text) == (server == "sum")
    assert "adds the regions' sums" not in text


def test_kits_hold_no_records_and_every_private_key_is_in_one_kit_alone(engine, deployment, tmp_path):
    made = engine.write_kits(deployment, tmp_path / "kits")
    kits = tmp_path / "kits"
    assert made["keys_made"]
    assert not [name for name in files_of(kits) if name.endswith((".ledger", ".masking", ".db"))]
    keys = {}
    for name in engine.sites(deployment):
        key = engine.site_folder(kits, name) / "site.key"
        keyless = {"server", "region"} if deployment.plan.is_masked else {"server"}  # such a region opens nothing
        assert key.exists() == (deployment.sites[name] not in keyless)
        if key.exists():
            assert stat.S_IMODE(key.stat().st_mode) == 0o600
            keys[name] = key.read_bytes()
    assert len(set(keys.values())) == len(keys)
    for path in kits.rglob("*"):
        if path.is_file() and path.name != "site.key":
            assert not any(key.strip() in path.read_bytes() for key in keys.values()), path


def test_kits_are_whole_or_not_there_and_replace_nothing(engine, deployment, tmp_path):
    kits = tmp_path / "kits"
    kits.mkdir()
    (kits / "mine.txt").write_text("kept")
    with pytest.raises(DataError, check=coded("kit.folder-occupied")):
        engine.write_kits(deployment, kits)
    assert files_of(kits) == {"mine.txt"}
    with pytest.raises(fulcrum.FulcrumError):
        engine.write_kits(deployment, tmp_path / "other", issuer_key=tmp_path / "no.key")
    assert not (tmp_path / "other").exists()
    assert not list(tmp_path.glob(".other*"))


@pytest.mark.engines
def test_a_run_here_ends_with_its_last_round_and_leaves_no_process(engine, deployment, tmp_path):
    here = replace(deployment, host=engine.host_here, port=free_port(following=1), runs_here=True, patience=60.0)
    engine.write_kits(here, tmp_path / "kits")
    heard = []
    done = engine.run_here(here, tmp_path / "kits", on_round=heard.append)
    assert [result.round for result in heard] == [result.round for result in done.run.rounds] == [1, 2]
    assert [summary["round"] for summary in done.history] == [1, 2]
    assert done.model
    assert not done.failed
    kits = str(tmp_path / "kits").encode()
    started = [path for path in Path("/proc").glob("[0-9]*/environ") if int(path.parent.name) != os.getpid()]
    assert not [path for path in started if kits in told_of(path)]
