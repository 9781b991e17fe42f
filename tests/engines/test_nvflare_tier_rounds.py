"""Rounds of three tiers on NVIDIA FLARE, part by part and without processes: what every site sends, opens and refuses."""

import threading

import numpy as np
import pytest

import fulcrum
from fulcrum.engines.site_folders import Deployment

pytest.importorskip("nvflare", reason="needs the extra nvflare")
pytest.importorskip("cryptography", reason="needs the extra secure")

from error_codes import coded
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from test_nvflare_masked_rounds import context

from fulcrum.aggregation.stage_messages import reply_of_region
from fulcrum.core.messages.model_message import unpack_model
from fulcrum.core.messages.regional_reply import RegionalSum, regional_reply_from_bytes
from fulcrum.core.silo.site import read_site
from fulcrum.engines.nvflare.flare_masked_region import MaskedRegionGatherer, OuterUpdater, SummingUpdater
from fulcrum.engines.nvflare.flare_masked_server import MaskedAssessor
from fulcrum.engines.nvflare.flare_masked_silo import MaskedSiloExecutor
from fulcrum.engines.nvflare.flare_region import RegionGatherer, RegionUpdater, patience_of
from fulcrum.engines.nvflare.flare_server import PlanAssessor
from fulcrum.engines.nvflare.flare_silo import SiloExecutor
from fulcrum.engines.nvflare.kits.nvflare_kits import write_kits
from fulcrum.engines.nvflare.site_jobs.admission import restrict_peers
from fulcrum.engines.nvflare.site_jobs.job_messages import ANSWER, MODEL, RELEASE, ROUND, TASK
from fulcrum.engines.nvflare.site_jobs.stage_tasks import REPLY
from fulcrum.errors import ExchangeError
from fulcrum.planning.files.plan_issue import new_key

REGIONS = {region: [f"{region}{k}" for k in (1, 2, 3)] for region in ("ra", "rb", "rc")}
COUNTRIES = {"east": ["ra", "rb"], "west": ["rc"]}
CHILDREN = REGIONS | COUNTRIES


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes kits of two countries, three regions and nine silos, and returns the sites in this process."""
    (tmp_path / "few_weights.py").write_text(
        "import numpy as np\n"
        "def start(options): return {'weights': np.zeros(6)}\n"
        "def train(model, assignment): return {'weights': model['weights'] + 0.1}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    rows = [f"{silo},200,{region},{country}" for country in COUNTRIES for region in COUNTRIES[country]
            for silo in REGIONS[region]]  # fmt: skip
    (tmp_path / "fed.csv").write_text("silo,records,region,country\n" + "\n".join(rows) + "\n")

    def write(aggregation):
        plan = fulcrum.plan(
            str(tmp_path / "fed.csv"),
            rounds=2,
            epsilon={"region": 6.0, "country": 4.0},
            parameters=6,
            purpose="deployment",
            aggregation=aggregation,
        )
        write_kits(Deployment(plan=plan, train="few_weights", patience=600.0, runs_here=True), tmp_path / "kits")
        return Sites(tmp_path / "kits", aggregation)

    return write


def test_no_kits_are_made_with_one_key_for_two_aggregators(tmp_path):
    """Of distant branches too: the key of a region of one country opens what is sealed to the other country."""
    keys = {silo: new_key(tmp_path / silo) for silos in REGIONS.values() for silo in silos}
    keys |= {node: new_key(tmp_path / node, "sealing") for node in (*REGIONS, *COUNTRIES)}
    first, *_, last = COUNTRIES
    keys[last] = keys[COUNTRIES[first][0]]
    sizes = {region: dict.fromkeys(REGIONS[region], 200) for region in REGIONS}
    plan = fulcrum.plan(
        fulcrum.Federation.from_sizes(sizes, outer={"country": COUNTRIES}),
        rounds=2,
        epsilon={"region": 6.0, "country": 4.0},
        parameters=6,
        purpose="deployment",
        keys=keys,
    )
    with pytest.raises(ExchangeError, check=coded("seal.nodes-share-key", node=last)):
        write_kits(Deployment(plan=plan, train="few_weights"), tmp_path / "kits")
    assert not (tmp_path / "kits").exists()


class Sites:
    """Every site of a federation of three tiers in this process, and the tasks that go down and up."""

    def __init__(self, kits, aggregation):
        self.kits, self.masked = kits, aggregation == "masked"
        self.assessor = MaskedAssessor() if self.masked else PlanAssessor()
        self.assessor.open(self.at("server"))
        self.silos, self.sent = {}, {}
        self.updaters = {}
        for name in CHILDREN:
            gatherer = MaskedRegionGatherer() if self.masked else RegionGatherer()
            self.updaters[name] = gatherer.get_updater(self.at(name))

    def at(self, name, peer="nobody"):
        return context(self.kits / name, peer)

    def answer(self, silo, task):
        if silo not in self.silos:
            self.silos[silo] = MaskedSiloExecutor() if self.masked else SiloExecutor()
            self.silos[silo]._listening = threading.Event()
            self.silos[silo]._listening.set()
        return self.silos[silo].execute(TASK, task, self.at(silo), Signal())

    def run(self, name, task):
        """Runs a task at an aggregator with all sites below, and returns the reply of the aggregator."""
        updater, copy = self.updaters[name], Shareable()
        copy.update(task)
        updater.start_task(copy, self.at(name))
        for child in CHILDREN[name]:
            if updater.ready:
                break
            given = Shareable()
            given.update(copy)
            reply = self.run(child, given) if child in CHILDREN else self.answer(child, given)
            updater.process_child_update(reply, self.at(name, child))
        assert updater.ready
        reply = updater.prepare_update_for_parent(self.at(name))
        self.sent.setdefault(name, []).append(reply[ANSWER])
        return reply

    def round(self):
        server = self.at("server")
        if self.masked:
            return self.assessor.server.run_round(self.carry)
        task = self.assessor.start_task(server)
        for country in COUNTRIES:
            self.assessor.take(country, self.run(country, task), server)
        self.assessor.end_task(server)
        return self.assessor.open(server).history[-1]

    def carry(self, requests, take):
        task = self.assessor.stage_task(requests, take)
        for country in self.assessor.targets(requests):
            self.assessor.take(country, self.run(country, task), self.at("server"))
        self.assessor.end_stage()


@pytest.mark.parametrize("aggregation", ["trusted", "masked"])
def test_a_round_goes_from_silos_by_regions_and_countries_to_the_server(written, aggregation):
    sites = written(aggregation)
    assert {name: type(updater) for name, updater in sites.updaters.items()} == dict.fromkeys(
        REGIONS, SummingUpdater if sites.masked else RegionUpdater
    ) | dict.fromkeys(COUNTRIES, OuterUpdater if sites.masked else RegionUpdater)
    for _ in range(2):
        summary = sites.round()
        assert summary["summed"] == ["east", "west"]
        assert summary["members"]["east"] == ["ra1", "ra2", "ra3", "rb1", "rb2", "rb3"]
    for region in REGIONS:  # sealed: the server carries these bytes
        for message in sites.sent[region]:
            assert b"fulcrum.sealed-sum/1" in message
            with pytest.raises(ExchangeError):
                reply_of_region(message)
    sums = [reply_of_region(message) for country in COUNTRIES for message in sites.sent[country]]
    assert {total.region for total in sums if isinstance(total, RegionalSum)} == {"east", "west"}


@pytest.mark.parametrize(("aggregation", "content"), [("trusted", "sealed releases"), ("masked", "sealed answers")])
def test_the_operator_of_the_server_reads_that_the_site_opens_nothing_on_its_way(written, aggregation, content):
    text = " ".join((written(aggregation).kits / "server/README.md").read_text().split())
    assert f"It carries the silos' {content} to their regions and cannot open them." in text


def test_what_no_child_sent_is_refused_and_answers_for_no_child(written):
    sites = written("trusted")
    task = sites.assessor.start_task(sites.at("server"))
    east = sites.updaters["east"]
    copy = Shareable()
    copy.update(task)
    east.start_task(copy, sites.at("east"))
    of_stranger = sites.run("rc", task)
    for junk in ({}, {ANSWER: None}, {ANSWER: b"junk"}, {RELEASE: b"junk"}, {ANSWER: of_stranger[ANSWER]}):
        message = Shareable()
        message.update(junk)
        assert not east.process_child_update(message, sites.at("east", "ra"))[0]
    assert not east.ready
    mine = sites.run("ra", task)
    assert east.process_child_update(mine, sites.at("east", "rb"))[0]  # the proof says who sent it, and not the name
    assert not east.ready
    assert east.process_child_update(sites.run("rb", task), sites.at("east", "rb"))[0]
    assert east.ready
    total = regional_reply_from_bytes(east.prepare_update_for_parent(sites.at("east"))[ANSWER])
    assert (total.region, len(total.members), task[ROUND]) == ("east", 6, 1)
    assert np.abs(total.values).max() > 0
    assert list(unpack_model(task[MODEL])) == ["weights"]


def test_a_silo_whose_site_does_not_open_answers_for_nobody_and_its_region_goes_on(written):
    sites = written("masked")
    (sites.kits / "ra1/local/fulcrum/policy.toml").write_text("largest_epsilon_above = 0.1\n")
    calls = []

    def begin(requests, take):
        calls.append(sites.assessor.stage_task(requests, take))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sites.assessor.server.run_round(begin)
    [task], ra = calls, sites.updaters["ra"]
    ra.start_task(task, sites.at("ra"))
    answers = {silo: sites.answer(silo, task) for silo in REGIONS["ra"]}
    assert {silo for silo, answer in answers.items() if REPLY not in answer} == {"ra1"}
    taken = {silo: ra.process_child_update(answers[silo], sites.at("ra", silo))[0] for silo in answers}
    assert taken == {"ra1": False, "ra2": True, "ra3": True}
    assert ra._missing() == {"ra1"}
    ra._open_region().close()


@pytest.mark.parametrize("aggregation", ["trusted", "masked"])
def test_every_tier_waits_longer_than_the_tier_below(written, aggregation):
    sites = written(aggregation)
    times = {name: patience_of(read_site(sites.kits / name / "local/fulcrum")) for name in ("ra", "east")}
    assert 600.0 == times["ra"] < times["east"] < sites.assessor._patience == 900.0


def test_an_aggregator_hears_its_children_and_its_parent_about_a_round_and_nobody_else(written):
    sites = written("trusted")

    class Cell:
        core_cell = None

        def add_incoming_request_filter(self, channel, topic, refusal):
            self.refusal = refusal

    class Message(dict):
        def get_header(self, key, default=None):
            return self.get(key, default)

    def heard(name, origin, channel=CellChannel.SERVER_COMMAND, topic="get_task"):
        cell = Cell()
        cell.core_cell = cell
        restrict_peers(cell, read_site(sites.kits / name / "local/fulcrum"))
        message = Message(
            {MessageHeaderKey.ORIGIN: f"{origin}.job", MessageHeaderKey.CHANNEL: channel, MessageHeaderKey.TOPIC: topic}
        )
        return cell.refusal(message) is None

    everyone = ["server", *CHILDREN, "ra1", "rc1"]
    assert {name for name in everyone if heard("ra", name)} == {"server", "ra", "east", "ra1"}
    assert {name for name in everyone if heard("east", name)} == {"server", "east", "ra", "rb"}
    assert {name for name in everyone if heard("ra1", name)} == {"server", "ra", "ra1"}
    assert not heard("ra", "east", "admin", "any")
