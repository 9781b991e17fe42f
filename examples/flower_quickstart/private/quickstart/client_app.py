"""What a node runs."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fulcrum.engines.flower.client_mod import fulcrum_mod
from quickstart.task import Network, records, train

app = ClientApp(mods=[fulcrum_mod])


@app.train()
def train_here(message: Message, context: Context) -> Message:
    """Trains the model on the node's own records, and returns it with what Flower's averaging asks for."""
    network = Network()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = records(context.node_config["partition-id"], context.node_config["num-partitions"])
    loss = train(network, images, labels)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics}), reply_to=message)
