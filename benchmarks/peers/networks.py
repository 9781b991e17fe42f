"""One federated round of a small network, for the engine and for pfl: sizes, modules, and seeded records.

Silos of 20 records take five steps of SGD on batches of 16, clip the whole update to norm 1 and add Gaussian noise.
"""

from typing import Any

import numpy as np
import torch

RECORDS, STEPS, BATCH, LEARNING_RATE, CLASSES, POOL = 20, 5, 16, 0.1, 10, 20_000
CLIP, NOISE = 1.0, 0.01


class Dense(torch.nn.Module):  # type: ignore[misc]
    """A network 64-64-10, of 4,810 parameters."""

    SHAPE = (64,)

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(64, 64)
        self.head = torch.nn.Linear(64, CLASSES)

    def forward(self, inputs: Any) -> Any:
        """Scores of the classes."""
        return self.head(torch.relu(self.hidden(inputs)))


class Convolutional(torch.nn.Module):  # type: ignore[misc]
    """A small convolutional network on images of 16 by 16, of 3,962 parameters."""

    SHAPE = (3, 16, 16)

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.second = torch.nn.Conv2d(8, 16, 3, padding=1)
        self.head = torch.nn.Linear(16 * 4 * 4, CLASSES)

    def forward(self, inputs: Any) -> Any:
        """Scores of the classes."""
        pool = torch.nn.functional.max_pool2d
        seen = pool(torch.relu(self.first(inputs)), 2)
        return self.head(pool(torch.relu(self.second(seen)), 2).flatten(1))


MODULES: dict[str, Any] = {"dense": Dense, "convolutional": Convolutional}


def pool(network: str, seed: int = 0) -> tuple[Any, Any]:
    """Records that silos draw theirs from, and their classes: what is learnt does not matter here."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, POOL)
    means = rng.standard_normal((CLASSES, *MODULES[network].SHAPE), np.float32)
    return means[labels] + rng.standard_normal((POOL, *MODULES[network].SHAPE), np.float32), labels
