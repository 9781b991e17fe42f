"""A federation on Flower's messages in one process: real ClientApps, and a grid that carries messages between them."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import fulcrum
from fulcrum.core.masking.masking_messages import member_reply_from_bytes
from fulcrum.core.silo.site import ledger_name
from fulcrum.core.store.ledger_checks import verify_ledger
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.engines.flower.client_mod import _station_of, fulcrum_mod
from fulcrum.engines.flower.flower_records import ARRAYS
from fulcrum.engines.flower.kits.flower_sites import write_sites
from fulcrum.engines.flower.strategy import answer_in
from fulcrum.engines.site_folders import Deployment

SIZES = {"north": dict.fromkeys(("caen", "lille", "metz", "nancy"), 100), "south": dict.fromkeys(("lyon", "nice"), 80)}
START = {"weight": np.linspace(-1, 1, 38).reshape(2, 19), "bias": np.zeros(2)}


# Who sends a message is for the runtime to say, which this world stands in the place of.
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def record(arrays):
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def half_a_step(message, context):
    """Trains, and would tell how many examples there were and how it went."""
    arrays = {name: array.numpy() + 0.5 for name, array in message.content["arrays"].items()}
    metrics = MetricRecord({"train_loss": 0.125, "num-examples": 4242})
    return Message(RecordDict({"arrays": record(arrays), "metrics": metrics}), reply_to=message)


class FlowerWorld:
    """Sites on disk, one ClientApp for all nodes, and every reply that ever left one."""

    def __init__(
        self,
        folder,
        sizes=SIZES,
        *,
        train=half_a_step,
        mod=fulcrum_mod,
        module="unused",
        outer=None,
        schedule=None,
        **options,
    ):
        self.folder = folder / "sites"
        self.folder.mkdir()
        settings = {"rounds": 3, "epsilon": {"region": 1.0}, "purpose": "deployment", "parameters": 40} | options
        federation = fulcrum.Federation.from_sizes(sizes, outer=outer)
        federation = federation if schedule is None else fulcrum.with_schedule(federation, schedule)
        plan = fulcrum.plan(federation, aggregation="masked", **settings)
        deployment = Deployment(plan=plan, train=module, patience=5.0, runs_here=True)
        self.plan, _ = write_sites(deployment, self.folder)
        self.silos = plan.federation.silo_names.tolist()
        self.app = ClientApp(mods=[mod])
        self.train = train
        self.trained = []
        self.replies = []

        @self.app.train()
        def training(message, context):
            self.trained.append(context.node_config["fulcrum-site"].rsplit("/", 1)[-1])
            return self.train(message, context)

        @self.app.evaluate()
        def evaluate(message, context):
            return Message(RecordDict({"metrics": MetricRecord({"accuracy": 0.75})}), reply_to=message)

        @self.app.query()
        def query(message, context):
            return Message(RecordDict({"metrics": MetricRecord({"records": 4242})}), reply_to=message)

    def restart(self):
        """All silos die; what they know is on disk."""
        _station_of.cache_clear()

    def context(self, node):
        config = {"fulcrum-site": str(self.folder / self.silos[node - 1])}
        return Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})

    def answer(self, message):
        reply = self.app(message, self.context(message.metadata.dst_node_id))
        self.replies.append(reply)
        return reply

    def grid(self, **conduct):
        return LocalGrid(self, **conduct)

    def ledger(self, silo):
        with read_ledger(self.folder / silo / "state" / ledger_name(silo)) as ledger:
            assert all(check.holds for check in verify_ledger(ledger))
            return [entry.round_number for entry in ledger.entries()]

    def check_replies(self):
        """Nothing but signed answers left, and no ledger shows less than the vectors that did."""
        left = set()
        for reply in self.replies:
            if reply.has_error():
                assert (reply.error.code, reply.error.reason) == (460, "refused")
                continue
            assert list(reply.content) == ["fulcrum"]
            answer = member_reply_from_bytes(answer_in(reply.content))
            assert answer.silo in self.silos
            if answer.holds == "input":
                left.add((answer.silo, answer.session.round_number))
        for silo, number in left:
            assert number in self.ledger(silo)
        return left


class LocalGrid(Grid):
    """Carries messages to the nodes 1, 2, ... and back. `drop(node, stage)` says which die, `tamper` changes messages."""

    def __init__(self, world, *, drop=lambda node, stage: False, tamper=lambda message: message):
        self._world, self._drop, self._tamper = world, drop, tamper
        self.stage = 0
        self.sent = []

    def set_run(self, run):
        raise NotImplementedError

    run = create_message = set_run

    def get_node_ids(self):
        return range(1, len(self._world.silos) + 1)

    def push_messages(self, messages):
        """Answers at once, and names the messages that will have a reply: for all others a strategy waits in vain."""
        self._replies = list(self.send_and_receive(messages))
        for number, reply in enumerate(self._replies):
            reply.metadata.__dict__["_reply_to_message_id"] = str(number)
        return [str(number) for number in range(len(self._replies))]

    def pull_messages(self, message_ids):
        replies, self._replies = self._replies, []
        return replies

    def send_and_receive(self, messages, *, timeout=None):
        self.stage += 1
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.sent.append(message)
            if not self._drop(node, self.stage):
                arrived = Message(
                    RecordDict(dict(message.content.items())), dst_node_id=node, message_type="train", ttl=60.0
                )
                replies.append(self._world.answer(self._tamper(arrived)))
        return replies


def arrays_of(result):
    return {name: array.numpy() for name, array in result.arrays.items()}


__all__ = ["ARRAYS", "START", "FlowerWorld", "LocalGrid", "arrays_of", "half_a_step", "record"]
