"""Plans that protect persons on engines: trusted and masked, the same model as the embedded engine to 1e-5."""

import csv
import json

import numpy as np
import pytest
from error_codes import coded, error_shown

import fulcrum
from fulcrum.aggregation.site_setup import init_site, site_toml
from fulcrum.cli.command_line import run
from fulcrum.core.masking.masking_messages import Inbox, request_from_bytes
from fulcrum.core.messages.layout import layout_of
from fulcrum.core.messages.regional_reply import RegionalSum
from fulcrum.core.noise.noise_sources import SeededNoiseBySilo
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.core.silo.masked_release import MaskedSilo
from fulcrum.core.silo.releasing import release
from fulcrum.core.silo.site import FORMAT, Site, SiteSettings, ledger_name, read_site
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.core.training.assignment import Assignment
from fulcrum.core.training.training_module import load_training_module
from fulcrum.engines.built_in_training import check_options
from fulcrum.engines.engine import engine_named
from fulcrum.engines.local_sites import free_port
from fulcrum.engines.site_folders import BUILT_IN, Deployment
from fulcrum.engines.training_check import check_fits
from fulcrum.errors import DataError
from fulcrum.planning.files.plan_issue import write_signature
from fulcrum.server.coordinator import Coordinator
from fulcrum.server.masked_server import MaskedServer
from fulcrum.simulation.data.tasks import load_task

pytest.importorskip("cryptography", reason="needs the extra secure")

SIZES = {"north": dict.fromkeys(("a1", "a2", "a3", "a4"), 10), "south": dict.fromkeys(("b1", "b2", "b3", "b4"), 8)}
SILOS = [silo for members in SIZES.values() for silo in members]
PARAMETERS = 10  # four features and a bias, two classes


@pytest.fixture(scope="module")
def stays(tmp_path_factory):
    """A table of stays: patients with one to four stays, one of them with values beyond every range."""
    path, rng = tmp_path_factory.mktemp("stays") / "stays.csv", np.random.default_rng(5)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["silo", "patient", "split", "f1", "f2", "f3", "f4", "label"])
        for region, members in SIZES.items():
            for silo, patients in members.items():
                for patient in range(patients):
                    for _ in range(rng.integers(1, 5)):
                        values = rng.uniform(0, 10, size=4).round(3)
                        label = "yes" if values[0] + (region == "north") > 5 else "no"
                        split = "test" if patient == 0 else "train"
                        table.writerow([silo, f"{silo}-{patient}", split, *values, label])
    return path


def made(purpose="research", aggregation="trusted", **options):
    options = {"rounds": 2, "epsilon": 30.0, "parameters": PARAMETERS, "unit": "person"} | options
    return fulcrum.plan(fulcrum.Federation.from_sizes(SIZES), purpose=purpose, aggregation=aggregation, **options)


def options_of(stays):
    return {"data": str(stays), "person": "patient", "ranges": "0,10", "classes": "no,yes", "learning_rate": 3.0}


def embedded(plan, stays):
    task = load_task(stays, person="patient", ranges="0,10")
    run = fulcrum.train(plan, task, training=fulcrum.GradientTraining(learning_rate=3.0), seeds=[0])
    assert np.abs(run.models[0]).max() > 1e-2
    return run.models[0]


@pytest.mark.parametrize("server", ["sum", "momentum", "random-effects"])
def test_sums_of_trusted_silos_give_the_model_of_the_embedded_engine(stays, server, tmp_path):
    draft = made(server=server)
    plan, module = verified_plan(draft), load_training_module(BUILT_IN)
    start = module.starting_model(options_of(stays))
    rate = module.server_rate(plan.unit, options_of(stays))
    assert (rate, module.server_rate(plan.unit, {})) == (3.0, 2.0)
    classes = module.classes(start)
    coordinator = Coordinator.open(tmp_path, plan, start, classes=classes, learning_rate=rate)
    noise = SeededNoiseBySilo(seed=0, silos=len(SILOS))
    while not coordinator.is_finished:
        number, model = coordinator.round_number, coordinator.model
        for region, members in SIZES.items():
            total = np.zeros(PARAMETERS)
            for silo in members:
                task = Assignment(silo=silo, round_number=number, plan=plan, seed=0, options=options_of(stays))
                rows = module.rows(model, task)
                total += release(None, plan, silo, number, gradients=rows, model=model, noise=noise).values
            answer = RegionalSum(
                plan_digest=plan.digest,
                region=region,
                round_number=number,
                members=tuple(sorted(members)),
                layout=layout_of(model),
                step=None,
                values=total,
            )
            coordinator.receive(answer.to_bytes(), region)
        coordinator.finish_round()
    assert np.abs(coordinator.model["head"] - embedded(draft, stays)).max() < 1e-5


class MaskedSites:
    """Silos of a masked plan for persons, each with its folder, and a server that drives rounds."""

    def __init__(self, folder, stays, purpose):
        keys = {silo: fulcrum.new_key(folder / f"{silo}.key") for silo in SILOS}
        self.draft = made(purpose, "masked", keys=keys, dropouts=1)
        fulcrum.save_plan(self.draft, folder / "plan.json")
        issuer = fulcrum.new_key(folder / "issuer.key")
        write_signature(folder / "plan.json", folder / "issuer.key", purpose=purpose)
        self.silos, self.folder, self.module = {}, folder, load_training_module(BUILT_IN)
        for silo in SILOS:
            home = folder / silo
            (home / "state").mkdir(parents=True)
            for name in ("plan.json", "plan.json.sig"):
                (home / name).write_bytes((folder / name).read_bytes())
            (home / "site.key").write_bytes((folder / f"{silo}.key").read_bytes())
            settings = SiteSettings(
                format=FORMAT,
                role="silo",
                name=silo,
                issuer=issuer,
                purpose=purpose,
                train=BUILT_IN,
                options=options_of(stays),
            )
            (home / "site.toml").write_text(site_toml(settings))
            init_site(Site(folder=home, settings=settings, plan=verified_plan(self.draft)))
            self.silos[silo] = MaskedSilo(read_site(home, "silo"), self.module)
        start = self.module.starting_model(options_of(stays))
        self.server = MaskedServer.open(
            folder / "server", verified_plan(self.draft), start, classes=2, learning_rate=3.0
        )

    def run(self):
        while not self.server.is_finished:
            self.server.run_round(self._carry)
        return self.server.model["head"]

    def _carry(self, requests, take):
        model = self.server.model
        for silo, request in requests.items():
            asked = isinstance(request_from_bytes(request), Inbox)
            take(self.silos[silo].masked_update(request, model) if asked else self.silos[silo].answer(request))


def test_masked_sums_give_the_model_of_the_embedded_engine(stays, tmp_path):
    world = MaskedSites(tmp_path, stays, "research")
    assert np.abs(world.run() - embedded(world.draft, stays)).max() < 1e-5


def test_masked_sums_are_deployed_and_charged_by_person(stays, tmp_path):
    world = MaskedSites(tmp_path, stays, "deployment")
    model = world.run()
    assert np.abs(model).max() > 1e-3
    with read_ledger(tmp_path / "a1" / "state" / ledger_name("a1")) as ledger:
        assert [entry.round_number for entry in ledger.entries()] == [1, 2]
        assert list(ledger.spent_by_unit()) == ["person"]
        expected = 2 * verified_plan(world.draft).release_cost("a1")["region"]
        assert ledger.total_cost.shifts["region"] == pytest.approx(expected)


def test_data_and_options_that_mix_persons_fail_at_the_silo_alone(stays):
    plan, module = verified_plan(made()), load_training_module(BUILT_IN)

    def persons(**changes):
        options = {name: value for name, value in (options_of(stays) | changes).items() if value is not None}
        return list(module.persons(Assignment(silo="a1", round_number=1, plan=plan, seed=0, options=options)))

    assert len(persons()) == 9  # one patient of ten is held out
    with pytest.raises(fulcrum.FulcrumError, check=coded("data.persons-unnamed")):
        persons(data="digits", ranges="0,16", person=None, classes=None)
    with pytest.raises(fulcrum.FulcrumError, check=coded("data.unit-fitted")):
        persons(ranges=None)
    for option in ("steps", "batch"):
        with pytest.raises(DataError, check=coded("engine.training-local", option=option)):
            persons(**{option: 1})


PATIENTS = 24
"""At silo a1, and six at b1; the last patient of a1 alone has the label maybe."""


def table_of(path, *, without=None, split=None, names_silos=True):
    """Writes a table of two silos without one patient; with a column of splits if there is a rule by number."""
    rng = np.random.default_rng(3)
    rows = []
    for silo, patients in (("a1", PATIENTS), ("b1", 6)):
        for number in range(patients):
            label = "maybe" if (silo, number) == ("a1", PATIENTS - 1) else ("no", "yes")[number % 2]
            for values in rng.uniform(0, 10, (1 + number % 3, 4)).round(3):
                row = {"patient": f"{silo}-{number}", "label": label} | dict(zip("pqrs", values, strict=True))
                row |= {"silo": silo} if names_silos else {}
                row |= {"split": split(number)} if split else {}
                rows += [row] if row["patient"] != without else []
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    return path


def persons_in(path, plan, silo="a1", **changes):
    """Returns features and class numbers of each person that the built-in training gives for a silo."""
    options = options_of(path) | {"classes": "no,maybe,yes"} | changes
    options = {name: value for name, value in options.items() if value is not None}
    assignment = Assignment(silo=silo, round_number=1, plan=plan, seed=0, options=options)
    module = load_training_module(BUILT_IN)
    assert module.starting_model(options)["head"].shape == (5, 3)
    return [(features.tolist(), labels.tolist()) for features, labels in module.persons(assignment)]


@pytest.mark.parametrize("split", [None, lambda number: "train" if number else "test"])
def test_a_patient_who_leaves_changes_nothing_about_any_other_patient_of_a_deployment(split, tmp_path):
    """Neither side nor class numbers of the others change, and the model keeps its width: the clip bounds the rest."""
    plan = verified_plan(made("deployment", epsilon=5.0, parameters=15))
    everybody = {silo: persons_in(table_of(tmp_path / "all.csv", split=split), plan, silo) for silo in ("a1", "b1")}
    assert [len(persons) for persons in everybody.values()] == ([23, 5] if split else [22, 3])
    left = 0
    for silo, number in [*(("a1", number) for number in range(PATIENTS)), *(("b1", number) for number in range(6))]:
        file = table_of(tmp_path / f"without-{silo}-{number}.csv", without=f"{silo}-{number}", split=split)
        for other, persons in everybody.items():
            remaining = persons_in(file, plan, other)
            gone = [person for person in persons if person not in remaining]
            assert remaining == [person for person in persons if person not in gone]
            assert len(gone) <= (other == silo)
            left += len(gone)
    assert left == sum(map(len, everybody.values()))  # everybody who was trained on left once, and alone


def test_the_draw_of_research_moves_other_patients_when_one_leaves(tmp_path):
    """A research plan keeps the draw, which the deployment above does without: the test can see the difference."""
    plan = verified_plan(made(parameters=15))
    everybody = persons_in(table_of(tmp_path / "all.csv"), plan)
    remaining = persons_in(table_of(tmp_path / "without.csv", without="a1-0"), plan)
    moved = [person for person in everybody if person not in remaining]
    assert len(moved) + sum(person not in everybody for person in remaining) > 3


def test_the_last_patient_of_either_side_may_leave_a_deployed_silo(tmp_path):
    plan, module = verified_plan(made("deployment", epsilon=5.0, parameters=15)), load_training_module(BUILT_IN)
    for side, trained, metrics in (("test", 0, {"accuracy"}), ("train", PATIENTS, set())):
        file = table_of(tmp_path / f"{side}.csv", split=lambda _, side=side: side)
        assert len(persons_in(file, plan)) == trained
        options = options_of(file) | {"classes": "no,maybe,yes"}
        server = Assignment(silo="", round_number=1, plan=plan, seed=0, options=options)
        numbers, left_out = module.metrics_of({"head": np.zeros((5, 3))}, server)
        assert (set(numbers), left_out) == (metrics, [])
    sides = {"X_train": np.ones((2, 4)), "y_train": [0, 1], "X_test": np.ones((0, 4)), "y_test": []}
    np.savez(tmp_path / "rows.npz", **sides, silo=["a1"] * 2, person=["ann", "bob"])
    assert len(persons_in(tmp_path / "rows.npz", plan, classes="0,1,2", person=None)) == 2


def test_without_named_persons_every_record_of_a_deployed_silo_is_trained_on(tmp_path):
    plan = verified_plan(made("deployment", epsilon=5.0, parameters=15, unit="record"))
    np.savez(tmp_path / "rows.npz", X=np.ones((9, 4)), y=np.arange(9) % 3, silo=["a1"] * 9)
    assert len(persons_in(tmp_path / "rows.npz", plan, classes="0,1,2", person=None)) == 9


def test_a_deployed_plan_for_persons_refuses_classes_and_silos_that_follow_from_all_records(tmp_path):
    deployed, research = (
        verified_plan(made(purpose, epsilon=5.0, parameters=15)) for purpose in ("deployment", "research")
    )
    named = table_of(tmp_path / "named.csv")
    dealt = table_of(tmp_path / "dealt.csv", names_silos=False)
    with pytest.raises(DataError, check=coded("data.classes-undeclared", data="named.csv")):
        persons_in(named, deployed, classes=None)
    with pytest.raises(DataError, check=coded("data.silos-unnamed", data="dealt", unit="person")):
        persons_in(dealt, deployed)
    with pytest.raises(DataError, check=coded("data.label-undeclared", label="maybe")):
        persons_in(named, deployed, classes="no,yes,unclear")
    assert persons_in(named, research, classes=None)
    silos = verified_plan(made("deployment", epsilon=5.0, parameters=15, unit="silo"))
    check_options(options_of(named) | {"classes": None}, silos)


def test_published_records_known_by_name_serve_a_deployed_plan_for_records():
    """Nobody leaves the digits: their classes, split and deal are fixed."""
    plan = verified_plan(made("deployment", epsilon=5.0, parameters=130, unit="record"))
    check_options({"data": "digits", "ranges": "0,16"}, plan)


def test_a_module_without_gradients_is_refused_before_any_process_starts(tmp_path, monkeypatch):
    (tmp_path / "only_trains.py").write_text(
        "import numpy as np\ndef start(options): return {'w': np.zeros(10)}\ndef train(model, assignment): return model\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    learner = load_training_module("only_trains")
    with pytest.raises(DataError, check=coded("training.gradients-missing", unit="person")):
        check_fits(learner, made(), learner.starting_model({}))
    check_fits(learner, made(unit="silo"), learner.starting_model({}))


def command_of(stays, *changes):
    words = {"--data": stays, "--person-column": "patient", "--ranges": "0,10", "--classes": "no,yes"}
    words |= {"--learning-rate": 3.0} | dict(changes)
    return [str(word) for name, value in words.items() if value is not None for word in (name, value)]


@pytest.mark.parametrize(("name", "aggregation"), [("nvflare", "trusted"), ("nvflare", "masked"), ("flower", "masked")])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("--ranges", None), "data.unit-fitted"),
        (("--classes", None), "data.classes-undeclared"),
        (("--classes", "no"), "data.classes-form"),
        (("--steps", 3), "engine.training-local"),
        (("--batch", 8), "engine.training-local"),
    ],
)
def test_the_commands_refuse_data_and_options_that_mix_persons(
    name, aggregation, change, expected, stays, tmp_path, capsys
):
    """With such options every silo would release noise alone, and nobody would learn why before the end."""
    pytest.importorskip({"flower": "flwr"}.get(name, name))
    fulcrum.save_plan(made("deployment", aggregation, epsilon=5.0), tmp_path / "plan.json")
    for command in ("up", "deploy"):
        out = tmp_path / command
        words = [command, name, str(tmp_path / "plan.json"), *command_of(stays, change), "-o", str(out)]
        assert run([*words, "--format", "json"]) == 2
        shown = capsys.readouterr()
        assert (shown.out, error_shown(shown.err)["code"], out.exists()) == ("", expected, False)


@pytest.mark.parametrize(("classes", "code"), [(None, 2), ("no,yes", 0)])
def test_kits_need_declared_classes_also_where_the_data_are_at_the_sites_alone(classes, code, stays, tmp_path, capsys):
    pytest.importorskip("nvflare")
    fulcrum.save_plan(made("deployment", epsilon=5.0), tmp_path / "plan.json")
    words = command_of(stays, ("--data", tmp_path / "elsewhere.csv"), ("--classes", classes))
    out = tmp_path / "kits"
    assert run(["deploy", "nvflare", str(tmp_path / "plan.json"), *words, "-o", str(out), "--format", "json"]) == code
    assert out.exists() == (code == 0)
    err = capsys.readouterr().err
    assert code == 0 or error_shown(err)["code"] == "data.classes-undeclared"


ENGINES = [("nvflare", "trusted"), ("nvflare", "masked"), ("flower", "masked")]
PAIRS = {"n1": ("a1", "a2"), "n2": ("a3", "a4"), "s1": ("b1", "b2"), "s2": ("b3", "b4")}
COUNTRIES = {"east": ["n1", "n2"], "west": ["s1", "s2"]}


@pytest.mark.engines
@pytest.mark.parametrize(("name", "aggregation"), ENGINES)
def test_up_runs_a_plan_for_persons_from_the_command_line_to_its_report(name, aggregation, stays, tmp_path, capsys):
    pytest.importorskip({"flower": "flwr"}.get(name, name))
    table = stays.read_text().splitlines()
    few = tmp_path / "few.csv"
    few.write_text("\n".join([table[0], *(row for row in table if row[:2] in ("a1", "a2", "b1", "b2"))]) + "\n")
    (tmp_path / "fed.csv").write_text("silo,records,region\na1,10,north\na2,10,north\nb1,8,south\nb2,8,south\n")
    planning = [
        "--rounds",
        "2",
        "--epsilon",
        "5",
        "--unit",
        "person",
        "--unit-name",
        "patient",
        "--aggregation",
        aggregation,
    ]
    deployed = ["--purpose", "deployment", "--parameters", str(PARAMETERS)]
    plan, out = tmp_path / "plan.json", tmp_path / "out"
    assert run(["plan", str(tmp_path / "fed.csv"), *planning, *deployed, "-o", str(plan)]) == 0
    capsys.readouterr()
    assert run(["up", name, str(plan), *command_of(few), "-o", str(out), "--format", "json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert [row["round"] for row in results["rounds"]] == [1, 2]
    assert all(row["silos"] == 4 for row in results["rounds"])
    with np.load(out / "model.npz") as model:
        assert np.abs(model["head"]).max() > 1e-3
    for silo in ("a1", "a2", "b1", "b2"):
        ledger = engine_named(name).site_folder(out / "kits", silo) / "state" / ledger_name(silo)
        assert run(["ledger", "show", str(ledger), "--format", "json"]) == 0
        assert '"person"' in capsys.readouterr().out
    report = tmp_path / "report.html"
    assert run(["report", str(plan), "--run", str(out), "-o", str(report), "--format", "json"]) == 0
    assert "patient" in report.read_text()


@pytest.mark.engines
@pytest.mark.parametrize(("name", "aggregation"), ENGINES)
def test_an_engine_on_this_machine_learns_the_model_of_the_embedded_engine(name, aggregation, stays, tmp_path):
    pytest.importorskip({"flower": "flwr"}.get(name, name))
    engine, plan = engine_named(name), made("research", aggregation)
    here = Deployment(
        plan=plan,
        train=BUILT_IN,
        options=options_of(stays),
        host=engine.host_here,
        port=free_port(following=1),
        runs_here=True,
        patience=240.0,
    )
    engine.write_kits(here, tmp_path / "kits")
    done = engine.run_here(here, tmp_path / "kits", on_round=lambda _: None)
    assert not done.failed
    assert np.abs(done.model["head"] - embedded(plan, stays)).max() < 1e-5


@pytest.mark.engines
def test_up_runs_a_plan_for_persons_with_countries_from_the_command_line(stays, tmp_path, capsys):
    pytest.importorskip("nvflare")
    rows = [
        f"{silo},{10 if silo[0] == 'a' else 8},{region},{country}"
        for country, regions in COUNTRIES.items()
        for region in regions
        for silo in PAIRS[region]
    ]
    (tmp_path / "fed.csv").write_text("\n".join(["silo,records,region,country", *rows]) + "\n")
    plan, out = tmp_path / "plan.json", tmp_path / "out"
    planning = ["--rounds", "2", "--epsilon", "region=8,country=5", "--unit", "person"]
    deployed = ["--purpose", "deployment", "--parameters", str(PARAMETERS)]
    assert run(["plan", str(tmp_path / "fed.csv"), *planning, *deployed, "-o", str(plan)]) == 0
    capsys.readouterr()
    assert run(["up", "nvflare", str(plan), *command_of(stays), "-o", str(out)]) == 0
    told = capsys.readouterr().err
    assert "15 sites: round 2 of 2: 2 sums" in told
    with np.load(out / "model.npz") as model:
        assert np.abs(model["head"]).max() > 1e-3
    content = verified_plan(fulcrum.read_plan(plan))
    for silo in SILOS:
        home = engine_named("nvflare").site_folder(out / "kits", silo)
        with read_ledger(home / "state" / ledger_name(silo)) as ledger:
            assert list(ledger.spent_by_unit()) == ["person"]
            assert [entry.round_number for entry in ledger.entries()] == [1, 2]
            for tier in ("region", "country"):
                expected = 2 * content.release_cost(silo)[tier]
                assert ledger.total_cost.shifts[tier] == pytest.approx(expected)


@pytest.mark.engines
@pytest.mark.parametrize(("name", "outer"), [("nvflare", "country"), ("flower", "federation")])
def test_masked_groups_below_countries_learn_the_model_of_persons_of_the_embedded_engine(name, outer, stays, tmp_path):
    """On Flower countries are logical, and no target hides the sums of regions from the server."""
    pytest.importorskip({"flower": "flwr"}.get(name, name))
    sizes = {region: {silo: 10 if silo[0] == "a" else 8 for silo in silos} for region, silos in PAIRS.items()}
    plan = fulcrum.plan(
        fulcrum.Federation.from_sizes(sizes, outer={"country": COUNTRIES}),
        rounds=2,
        epsilon={"region": 40.0, outer: 30.0},
        parameters=PARAMETERS,
        unit="person",
        aggregation="masked",
    )
    engine = engine_named(name)
    here = Deployment(
        plan=plan,
        train=BUILT_IN,
        options=options_of(stays),
        host=engine.host_here,
        port=free_port(following=1),
        runs_here=True,
        patience=240.0,
    )
    engine.write_kits(here, tmp_path / "kits")
    done = engine.run_here(here, tmp_path / "kits", on_round=lambda _: None)
    assert not done.failed
    assert np.abs(done.model["head"] - embedded(plan, stays)).max() < 1e-5


@pytest.mark.engines
@pytest.mark.parametrize(("name", "aggregation"), ENGINES)
def test_an_engine_deploys_a_plan_for_persons_and_charges_every_silo(name, aggregation, stays, tmp_path):
    pytest.importorskip({"flower": "flwr"}.get(name, name))
    engine, plan = engine_named(name), made("deployment", aggregation, epsilon=5.0)
    here = Deployment(
        plan=plan,
        train=BUILT_IN,
        options=options_of(stays),
        host=engine.host_here,
        port=free_port(following=1),
        runs_here=True,
        patience=240.0,
    )
    engine.write_kits(here, tmp_path / "kits")
    done = engine.run_here(here, tmp_path / "kits", on_round=lambda _: None)
    assert not done.failed
    assert [result.round for result in done.run.rounds] == [1, 2]
    for silo in SILOS:
        home = engine.site_folder(tmp_path / "kits", silo)
        with read_ledger(home / "state" / ledger_name(silo)) as ledger:
            assert list(ledger.spent_by_unit()) == ["person"]
            assert ledger.sequence == 2


def test_flower_runs_the_sites_module_and_refuses_an_app_that_gives_one_update(stays, tmp_path):
    pytest.importorskip("flwr", reason="needs the extra flower")
    from fulcrum.core.training.training_worker import TrainingWorker
    from fulcrum.engines.flower.client_mod import _Station

    MaskedSites(tmp_path, stays, "deployment")
    station = _Station(read_site(tmp_path / "a1", "silo"))
    assert isinstance(station._silo._training, TrainingWorker)
    settings = tmp_path / "a2" / "site.toml"
    settings.write_text(settings.read_text().replace(BUILT_IN, ""))
    with pytest.raises(DataError, check=coded("flower.app-by-person", unit="person")):
        _Station(read_site(tmp_path / "a2", "silo"))
