"""How a site of a test misbehaves, or what it records: loaded by every Python process of the site, before anything else.

FULCRUM_TEST_CONDUCT names the conducts, comma separated; without it nothing happens.
"""

import dataclasses
import os
from pathlib import Path


def record() -> None:
    """The server writes down every frame it receives, as it stands after the transport's own decryption."""
    from nvflare.fuel.f3.sfm import conn_manager

    path = os.environ["FULCRUM_TEST_RECORD"]
    process_frame = conn_manager.SfmFrameReceiver.process_frame

    def recorded(self, frame):
        with Path(f"{path}.{os.getpid()}").open("ab") as file:
            file.write(bytes(frame))
        process_frame(self, frame)

    conn_manager.SfmFrameReceiver.process_frame = recorded


def tell() -> None:
    """The silo writes down what it releases, so that a test knows what to look for."""
    from fulcrum.core.messages import sealing

    path = os.environ["FULCRUM_TEST_RECORD"]
    seal = sealing.Sealer.seal

    def told(self, release):
        Path(f"{path}-{release.silo}-{release.round_number}").write_bytes(release.to_bytes())
        return seal(self, release)

    sealing.Sealer.seal = told


def plain() -> None:
    """Releases travel as they are, without encryption."""
    from fulcrum.aggregation import release_opening
    from fulcrum.core.messages import sealing
    from fulcrum.core.messages.release_message import Release

    sealing.Sealer.seal = lambda self, release: release.to_bytes()
    release_opening.Opener.open = lambda self, data: Release.from_bytes(data)


def loud() -> None:
    """The silo sends ten times what it released."""
    from fulcrum.core.messages import sealing

    seal = sealing.Sealer.seal
    sealing.Sealer.seal = lambda self, release: seal(self, dataclasses.replace(release, values=10 * release.values))


def silent() -> None:
    """The silo that FULCRUM_TEST_SILENT names adds no noise to what it releases, and nobody looks at norms."""
    import numpy as np

    from fulcrum.aggregation import contributions
    from fulcrum.core.silo import releasing
    from fulcrum.server import coordinator

    contributions.norm_bounds = lambda *given: (0.0, np.inf)
    contributions.least_sum = coordinator.least_sum = lambda *given: 0.0

    name, terms_of, mechanism_of = (
        os.environ["FULCRUM_TEST_SILENT"],
        releasing.release_parameters_of,
        releasing.seeded_mechanism,
    )

    class Nothing:
        @staticmethod
        def integers(*, width, count):
            return np.zeros(count, dtype=np.int64)

    def narrow(plan, silo, *round_number, **given):
        terms = terms_of(plan, silo, *round_number, **given)
        return dataclasses.replace(terms, noise=Nothing()) if silo == name else terms

    def bare(plan, index, *given):
        mechanism = mechanism_of(plan, index, *given)
        silent = plan.federation.silo_name(index) == name
        return dataclasses.replace(mechanism, draw=np.zeros) if silent else mechanism

    releasing.release_parameters_of, releasing.seeded_mechanism = narrow, bare


def again() -> None:
    """Every silo draws in each round what it drew in the first."""
    from fulcrum.core.noise.noise_sources import SeededNoise, SeededNoiseBySilo

    for kind in (SeededNoise, SeededNoiseBySilo):
        drawn = kind.standard_normal
        kind.standard_normal = lambda self, *, round_number, block, shape, drawn=drawn: drawn(
            self, round_number=1, block=block, shape=shape
        )


def replay() -> None:
    """From round 3 on, the silo sends what it sent in round 2."""
    from fulcrum.core.silo import silo_release as silo

    answer = silo.SiloStation.answer
    kept = {}

    def replayed(self, model, round_number):
        made = answer(self, model, round_number)
        kept.setdefault(round_number, made)
        return kept[2] if round_number > 2 else made

    silo.SiloStation.answer = replayed


def late() -> None:
    """The silo trains for four seconds longer than others."""
    import time

    from fulcrum.core.training.training_module import TrainingModule

    update = TrainingModule.update

    def slowly(self, model, assignment):
        time.sleep(4)
        return update(self, model, assignment)

    TrainingModule.update = slowly


def pose() -> None:
    """Before its own release the silo b1 sends its region junk in the name of b2, and word that all is over."""
    import copy

    from nvflare.apis.fl_constant import ReservedKey, ReservedTopic
    from nvflare.apis.shareable import Shareable
    from nvflare.edge.constants import EdgeTaskHeaderKey
    from nvflare.edge.utils import message_topic_for_task_end
    from nvflare.private.fed.client import communicator

    from fulcrum.engines.nvflare.site_jobs.job_messages import DECLINE, RELEASE, TASK

    submit = communicator.Communicator.submit_update
    own_context = communicator.gen_new_peer_ctx

    def as_another(fl_ctx):
        made = own_context(fl_ctx)
        made.props[ReservedKey.IDENTITY_NAME]["value"] = "b2"
        assert made.get_identity_name() == "b2"
        return made

    def posing(self, project_name, token, ssid, fl_ctx, client_name, shareable, *rest, **named):
        communicator.gen_new_peer_ctx = as_another
        for junk in ({}, {RELEASE: b"junk"}, {DECLINE: b"junk"}):
            sent = copy.deepcopy(shareable)
            del sent[RELEASE]
            sent.update(junk)
            submit(self, project_name, token, ssid, fl_ctx, client_name, sent, *rest, **named)
        communicator.gen_new_peer_ctx = own_context
        over = Shareable()
        over.set_header(EdgeTaskHeaderKey.TASK_SEQ, 10**6)
        for topic in (message_topic_for_task_end(TASK), ReservedTopic.END_RUN):
            told = fl_ctx.get_engine().send_aux_request(["mid"], topic, over, 1.0, fl_ctx)
            print(topic, "answered with", told["mid"].get_return_code(), flush=True)
        return submit(self, project_name, token, ssid, fl_ctx, client_name, shareable, *rest, **named)

    communicator.Communicator.submit_update = posing


def ask_again() -> None:
    """In its round 4, the server asks silos for round 2 again, on another model."""
    _ask(4, 2)


def ask_past() -> None:
    """In its round 4, the server asks silos for the round after the plan's last."""
    _ask(4, 5)


def _ask(when: int, instead: int) -> None:
    from fulcrum.core.messages.model_message import pack_model, unpack_model
    from fulcrum.engines.nvflare import flare_server as server
    from fulcrum.engines.nvflare.site_jobs import job_messages as common

    start_task = server.PlanAssessor.start_task

    def lying(self, fl_ctx):
        task = start_task(self, fl_ctx)
        if task[common.ROUND] == when:
            task[common.ROUND] = instead
            task[common.MODEL] = pack_model(
                {name: array + 1.0 for name, array in unpack_model(task[common.MODEL]).items()}
            )
        return task

    server.PlanAssessor.start_task = lying


def fall() -> None:
    """In round r of masked rounds the job process of the site is killed as it begins the r-th stage, once a round."""
    import signal

    from fulcrum.aggregation.masked_group import STAGES
    from fulcrum.core.masking.declines import stage_of
    from fulcrum.core.masking.masking_messages import request_from_bytes

    def strike(name, round_number, stage):
        mark = Path(f"{os.environ['FULCRUM_TEST_RECORD']}.fell-{name}-{round_number}")
        if STAGES[(round_number - 1) % len(STAGES)] == stage and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def striking(kind, method, place):
        work = getattr(kind, method)

        def struck(self, *arguments, **named):
            strike(*place(self, *arguments))
            return work(self, *arguments, **named)

        setattr(kind, method, struck)

    from fulcrum.aggregation.masked_region import MaskedRegion
    from fulcrum.aggregation.stage_messages import stage_call_from_bytes
    from fulcrum.aggregation.staged_node import StagedNode
    from fulcrum.core.silo.masked_station import MaskedStation
    from fulcrum.server.regional_round import RegionalRound

    def of_call(self, data, *_):
        made = stage_call_from_bytes(data)
        name = self._name if isinstance(self, StagedNode) else self._region
        return name, made.round_number, made.stage

    def of_request(self, data, *_):
        made = request_from_bytes(data)
        return self._site.settings.name, made.session.round_number, stage_of(made)

    striking(RegionalRound, "take", lambda self, *_: ("server", self._number, self.stage))
    striking(MaskedRegion, "begin", of_call)
    striking(StagedNode, "begin", of_call)
    striking(MaskedStation, "masked_update", of_request)
    striking(MaskedStation, "answer", of_request)


def tumble() -> None:
    """In each round of trusted sums the job process of the site is killed at another point of its work, once a round."""
    import signal

    from fulcrum.aggregation.regional_aggregator import Region
    from fulcrum.core.silo.silo_release import SiloStation
    from fulcrum.server.coordinator import Coordinator

    def striking(kind, method, place, before, after):
        work = getattr(kind, method)

        def struck(self, *arguments, **named):
            name, number, points = place(self, *arguments)
            mark = Path(f"{os.environ['FULCRUM_TEST_RECORD']}.fell-{name}-{number}")
            at = (number - 1) % points
            if at == before and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            result = work(self, *arguments, **named)
            if at == after and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(kind, method, struck)

    def of_node(self, *arguments):
        return self._region, arguments[-1], 4

    striking(SiloStation, "answer", lambda self, model, number: (self._site.settings.name, number, 2), 0, 1)
    striking(Region, "is_summed", of_node, 0, -1)
    striking(Region, "accept", of_node, -1, 1)
    striking(Region, "close_round", of_node, 2, 3)
    striking(Coordinator, "receive", lambda self, *_: ("server", self.round_number, 4), 0, 1)
    striking(Coordinator, "finish_round", lambda self: ("server", self.round_number, 4), 2, 3)


def forward() -> None:
    """The outer aggregator FULCRUM_TEST_FORWARD sends the sum of its first child in the place of its own, in its name."""
    from fulcrum.aggregation.regional_aggregator import Region
    from fulcrum.core.messages.regional_reply import RegionalSum

    close_round = Region.close_round

    def forwarded(self, round_number, **_named):
        answer = close_round(self, round_number, forget=False)  # the sums of children stay, to be sent
        if self._region != os.environ["FULCRUM_TEST_FORWARD"] or not isinstance(answer, RegionalSum):
            return answer
        _, data = self._file.release_of(round_number, min(self.members))
        values, _ = self._intake.restore(min(self.members), data)
        fields = {name: getattr(answer, name) for name in ("plan_digest", "region", "round_number", "layout", "step")}
        return RegionalSum(**fields, members=answer.members, values=values)

    Region.close_round = forwarded


def mute() -> None:
    """The silo refuses every masked stage from the input on."""
    from fulcrum.core.silo.masked_station import MaskedStation
    from fulcrum.errors import ExchangeError

    def refuse(self, *_arguments, **_named):
        raise ExchangeError("mask.request-not-for-input")

    MaskedStation.masked_update = refuse


for conduct in filter(None, os.environ.get("FULCRUM_TEST_CONDUCT", "").split(",")):
    globals()[conduct]()
