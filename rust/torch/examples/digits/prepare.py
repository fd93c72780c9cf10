"""Makes what the example trains on: prepare.py FOLDER.

FOLDER/model.pt is a TorchScript module, FOLDER/data.npz scikit-learn's digits, FOLDER/order.npy which of them each rank
sees at each step, of shape (steps, ranks, batch). With the same seed the files have the same contents.
"""

import sys
from pathlib import Path

import numpy
import torch
from sklearn.datasets import load_digits

STEPS, RANKS, BATCH, SEED = 50, 2, 32, 7
TESTED = 297


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 4 * 4, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    )


def main(folder: Path, ranks: int) -> None:
    torch.manual_seed(SEED)
    torch.jit.script(network()).save(folder / "model.pt")
    digits = load_digits()
    images = (digits.images / 16).astype(numpy.float32).reshape(-1, 1, 8, 8)
    targets = digits.target.astype(numpy.int64)
    trained = len(images) - TESTED
    numpy.savez(
        folder / "data.npz",
        images=images[:trained],
        targets=targets[:trained],
        test_images=images[trained:],
        test_targets=targets[trained:],
    )
    order = numpy.random.default_rng(SEED).integers(0, trained, (STEPS, ranks, BATCH))
    numpy.save(folder / "order.npy", order)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else RANKS)
