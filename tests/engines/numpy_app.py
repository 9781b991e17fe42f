"""A Flower app of a user's kind, in NumPy: its files, with Fulcrum's two lines or without them."""

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "steps"
version = "1.0.0"
description = "Steps towards the number of a node"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "steps.server_app:app"
clientapp = "steps.client_app:app"
"""

CLIENT = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from fulcrum.engines.flower.client_mod import fulcrum_mod

app = ClientApp(mods=[fulcrum_mod])


@app.train()
def train(message, context):
    place, nodes = context.node_config["partition-id"], context.node_config["num-partitions"]
    weight = message.content["arrays"]["weight"].numpy() + (1.0 + place / nodes) / 4
    metrics = MetricRecord({"num-examples": 10})
    return Message(RecordDict({"arrays": ArrayRecord({"weight": Array(weight)}), "metrics": metrics}), reply_to=message)
"""

SERVER = """
import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from fulcrum.engines.flower.strategy import FulcrumStrategy

app = ServerApp()


def mean(number, arrays):
    return MetricRecord({"mean": float(arrays["weight"].numpy().mean())})


@app.main()
def main(grid, context):
    strategy = FulcrumStrategy(fraction_train=1.0, fraction_evaluate=0.0)
    strategy.start(grid=grid, initial_arrays=ArrayRecord({"weight": Array(np.zeros(8))}), evaluate_fn=mean)
"""


def write_app(folder, *, private=True):
    """Writes the app; without Fulcrum's lines it is averaged by FedAvg."""
    client, server = CLIENT, SERVER
    if not private:
        client = client.replace("mods=[fulcrum_mod]", "").replace(
            "from fulcrum.engines.flower.client_mod import fulcrum_mod\n", ""
        )
        server = server.replace(
            "fulcrum.engines.flower.strategy import FulcrumStrategy", "flwr.serverapp.strategy import FedAvg"
        )
        server = server.replace("FulcrumStrategy(", "FedAvg(")
    (folder / "steps").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "steps" / "__init__.py").write_text("")
    (folder / "steps" / "client_app.py").write_text(client)
    (folder / "steps" / "server_app.py").write_text(server)
    return folder
