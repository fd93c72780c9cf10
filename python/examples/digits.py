"""A small convolutional network on handwritten digits, trained by any number of ranks.

The data are the 1,797 images of 8 x 8 pixels of the UCI set "Optical Recognition of Handwritten Digits" that
come with scikit-learn; nothing is downloaded. Every step takes the same images, whatever the number of ranks:
each rank computes its share of one global batch, and DistributedDataParallel averages their gradients. So one
process and many ranks train the same model, but for rounding.

The imports stand inside the functions, as is usual for functions that travel: what the driver doesn't need it
doesn't load, and a rank's first line runs before torch is loaded.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import phalanx

if TYPE_CHECKING:
    import torch

GLOBAL_BATCH = 64
TEST_IMAGES = 360


def load_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All images as a tensor of n x 1 x 8 x 8 between 0 and 1, and their digits; shuffled, always alike."""
    import torch
    from sklearn.datasets import load_digits as bundled_digits

    pixels, digits = bundled_digits(return_X_y=True)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(pixels / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return images[order], torch.tensor(digits)[order]


def new_model() -> torch.nn.Module:
    """The network: two convolutions and two linear layers, some 70,000 parameters."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def train(epochs: int = 10, learning_rate: float = 2e-3, seed: int = 0) -> dict[str, torch.Tensor]:
    """Trains as one rank of `WORLD_SIZE`, or alone where that isn't set; returns the weights.

    Equal arguments and an equal number of ranks give equal weights. The number of ranks has to divide 64.
    """
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if GLOBAL_BATCH % ranks != 0:
        raise ValueError(f"{ranks} ranks don't divide the batch of {GLOBAL_BATCH} images")
    torch.set_num_threads(1)  # the images are small: more threads get in each other's way
    torch.manual_seed(seed)
    model = network = new_model()
    if ranks > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(network)
    phalanx.phase("process group ready")

    images, digits = load_digits()
    images, digits = images[:-TEST_IMAGES], digits[:-TEST_IMAGES]
    steps = len(images) // GLOBAL_BATCH
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    for epoch in range(epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed + epoch))
        loss_sum = 0.0
        for batch in order[: steps * GLOBAL_BATCH].view(steps, GLOBAL_BATCH):
            mine = batch[rank::ranks]
            loss = cross_entropy(model(images[mine]), digits[mine])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loss_sum += loss.item()
        if epoch % 3 == 0 or epoch == epochs - 1:
            print(f"epoch {epoch + 1:2d} of {epochs}: loss {loss_sum / steps:.3f} on this rank's images")
    phalanx.phase("training done")

    if ranks > 1:
        dist.destroy_process_group()
    return {name: weights.detach().cpu() for name, weights in network.state_dict().items()}


def accuracy(weights: dict[str, torch.Tensor]) -> float:
    """The share of the test images, which `train` never sees, that the trained network tells right."""
    import torch

    model = new_model()
    model.load_state_dict(weights)
    images, digits = load_digits()
    with torch.no_grad():
        answers = model(images[-TEST_IMAGES:]).argmax(dim=1)
    return float((answers == digits[-TEST_IMAGES:]).float().mean())
