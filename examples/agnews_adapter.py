"""An adapter: a small bottleneck that silos train inside a public network, all else of which stays frozen.

python examples/agnews_adapter.py [--silos 700] [--epsilon 1 3 8] [--format markdown]

Four classes of AG News (agnews.npz in the folder that FULCRUM_DATA names), sentence embeddings of 384 numbers. A
network 384-64-4 is trained on 200 records that count as public and that no silo holds. Silos go on from there three
ways: they train the adapter alone, 384 to 4 to 64 numbers, added to what the trunk gives; or the head alone; or the
whole network. The pattern of `trained` says which parameters are trained and travel, and noise grows with their
number. The adapter begins at zero, so every way begins where the public network stands.

The whole network diverges under much noise at the learning rate of the two others. It is trained apart:

python examples/agnews_adapter.py --models network --learning-rate 0.05
"""

import argparse
import sys
from dataclasses import replace

import numpy as np
import torch
from network_at_scale import Parser, add_study_options, errors_in_one_line, study

import fulcrum

WIDTH, HIDDEN, BOTTLENECK, CLASSES = 384, 64, 4, 4
PUBLIC_RECORDS, PUBLIC_STEPS = 200, 200
TRAINED = {"adapter": "adapter.*", "head": "head.*", "network": "*"}


class Adapted(torch.nn.Module):
    """A trunk, an adapter that begins as nothing, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = torch.nn.Linear(WIDTH, HIDDEN)
        self.adapter = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, BOTTLENECK), torch.nn.ReLU(), torch.nn.Linear(BOTTLENECK, HIDDEN)
        )
        self.head = torch.nn.Linear(HIDDEN, CLASSES)
        for parameter in self.adapter[2].parameters():
            torch.nn.init.zeros_(parameter)

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Returns a score for each class."""
        hidden = torch.relu(self.trunk(embeddings) + self.adapter(embeddings))
        scores: torch.Tensor = self.head(hidden)
        return scores


def public_part(task: fulcrum.Task) -> tuple[np.ndarray, np.ndarray, fulcrum.Task]:
    """Returns the features and labels that count as public, and the task without them."""
    rest = replace(
        task, features_train=task.features_train[PUBLIC_RECORDS:], labels_train=task.labels_train[PUBLIC_RECORDS:]
    )
    return task.features_train[:PUBLIC_RECORDS], task.labels_train[:PUBLIC_RECORDS], rest


def public_network(features: np.ndarray, labels: np.ndarray) -> Adapted:
    """Returns the network, its trunk and head trained on public records."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Adapted()
    inputs, targets = torch.as_tensor(features, dtype=torch.float32), torch.as_tensor(labels)
    trained = [*network.trunk.parameters(), *network.head.parameters()]
    optimiser = torch.optim.SGD(trained, lr=0.05, weight_decay=0.01)
    for _ in range(PUBLIC_STEPS):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(network(inputs), targets).backward()
        optimiser.step()
    return network


def accuracy_of(network: Adapted, task: fulcrum.Task) -> float:
    """Returns the accuracy of a network on the test split."""
    with torch.no_grad():
        said = network(torch.as_tensor(task.features_test, dtype=torch.float32)).argmax(dim=1)
    return float(np.mean(said.numpy() == task.labels_test))


def main() -> None:
    """Trains the public network, then what of it silos train."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_study_options(parser, tuple(TRAINED), learning_rate=0.5)
    parser.set_defaults(silos=[700], models=["adapter", "head"])
    parser.add_argument("--data-dir", default=None)
    options = parser.parse_args()
    with errors_in_one_line(parser):
        whole = fulcrum.load_task("agnews", every_class=True, components=WIDTH, data_dir=options.data_dir)
        features, labels, task = public_part(whole)
        network = public_network(features, labels)
        sys.stderr.write(f"public network, before silos train: accuracy {accuracy_of(network, task):.3f}\n")
        study(
            task,
            {
                name: lambda pattern=pattern: fulcrum.torch_model(network, trained=pattern)
                for name, pattern in TRAINED.items()
            },
            options,
        )


if __name__ == "__main__":
    main()
