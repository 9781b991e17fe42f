"""The network, the records of a node, and how it is trained and tested."""

import torch
from sklearn.datasets import load_digits
from torch import nn

ROUNDS = 5
DIGITS = load_digits()


class Network(nn.Module):
    """One layer of 650 parameters: noise goes into each of them, so a small network learns more under it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Returns the scores of the ten digits."""
        return self.layer(images)


def records(partition: int, partitions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the images and labels of a node: every so-manieth of the first 1,500."""
    mine = slice(partition, 1500, partitions)
    return torch.tensor(DIGITS.data[mine] / 16, dtype=torch.float32), torch.tensor(DIGITS.target[mine])


def public_records() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the images and labels that the server tests with, which no node has."""
    return torch.tensor(DIGITS.data[1500:] / 16, dtype=torch.float32), torch.tensor(DIGITS.target[1500:])


def train(network: Network, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Goes over the records five times, and returns the last loss."""
    network.train()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.5)
    for _ in range(5):
        for some in torch.randperm(len(images)).split(32):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(network(images[some]), labels[some])
            loss.backward()
            optimiser.step()
    return loss.item()


def accuracy(network: Network, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Returns how many of the images are read rightly, as a share."""
    network.eval()
    with torch.no_grad():
        return (network(images).argmax(dim=1) == labels).float().mean().item()
