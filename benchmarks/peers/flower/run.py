"""A round of Flower's simulation: its message API and `FedAvg` over two Ray workers, local training in NumPy."""

import logging
import time
from importlib.metadata import version

import numpy as np
import workload
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

client_app, server_app = ClientApp(), ServerApp()
starts, heads = [], []


@client_app.train()
def train(message, context):
    """One silo's answer: the global head plus its private update. Its worker makes the records once and keeps them."""
    rng = np.random.default_rng()
    silo = workload.records()[0][context.node_config["partition-id"]]
    (head,) = message.content["arrays"].to_numpy_ndarrays()
    head = head + workload.private(workload.trained(head, silo, rng) - head, rng)
    weight = MetricRecord({"num-examples": workload.RECORDS})
    return Message(RecordDict({"arrays": ArrayRecord([head]), "metrics": weight}), reply_to=message)


class Clocked(FedAvg):
    """Federated averaging that keeps the time at the start of every round."""

    def configure_train(self, *args, **kwargs):
        """Notes the time."""
        starts.append(time.perf_counter())
        return super().configure_train(*args, **kwargs)


@server_app.main()
def serve(grid, _context):
    """Runs one round more than is timed: a round ends where the next starts."""
    strategy = Clocked(fraction_evaluate=0.0, min_available_nodes=workload.SILOS)
    rounds = workload.WARM_UP + workload.ROUNDS + 1
    result = strategy.start(grid, ArrayRecord([workload.ZEROS]), num_rounds=rounds)
    heads.extend(result.arrays.to_numpy_ndarrays())


logging.getLogger("flwr").setLevel(logging.ERROR)
workers = {"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 1}}
run_simulation(server_app, client_app, num_supernodes=workload.SILOS, backend_config=workers)
_, held_out = workload.records()
workload.report("flower", version("flwr"), np.diff(starts)[workload.WARM_UP :].tolist(), heads[0], held_out)
