"""What the server runs."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fulcrum.engines.flower.strategy import FulcrumStrategy
from quickstart.task import ROUNDS, Network, accuracy, public_records

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the rounds, and tests the global model on records that are public."""
    strategy = FulcrumStrategy()
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Network().state_dict()),
        num_rounds=ROUNDS,
        evaluate_fn=tested,
    )
    print(f"accuracy {result.evaluate_metrics_serverapp[ROUNDS]['accuracy']:.3f} after {ROUNDS} rounds")


def tested(number: int, arrays: ArrayRecord) -> MetricRecord:
    """Returns the accuracy of the global model after a round."""
    network = Network()
    network.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": accuracy(network, *public_records())})
