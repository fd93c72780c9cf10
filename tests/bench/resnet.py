"""A convolutional net of ResNet-50's shape (He et al., https://arxiv.org/abs/1512.03385), for benchmarks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

# Blocks of each stage, and how wide they are inside.
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
EXPANSION = 4


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = width * EXPANSION
        self.block = nn.Sequential(
            *normed(channels, width, 1), nn.ReLU(inplace=True),
            *normed(width, width, 3, stride), nn.ReLU(inplace=True),
            *normed(width, wide, 1),
        )  # fmt: skip
        is_same = stride == 1 and channels == wide
        self.shortcut = nn.Identity() if is_same else nn.Sequential(*normed(channels, wide, 1, stride))

    def forward(self, x: Any) -> Any:
        return torch.relu(self.block(x) + self.shortcut(x))


class ResNet50(nn.Module):
    """Takes images of this height and width as flat rows of floats, colour by colour; returns 1,000 scores."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side
        layers = [*normed(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        channels = 64
        for stage, (blocks, width) in enumerate(STAGES):
            for at in range(blocks):
                layers.append(Bottleneck(channels, width, 2 if stage > 0 and at == 0 else 1))
                channels = width * EXPANSION
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))

    def forward(self, x: Any) -> Any:
        return self.net(x.reshape(-1, 3, self.side, self.side))


def normed(channels: int, to: int, size: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(channels, to, size, stride, size // 2, bias=False), nn.BatchNorm2d(to)]
