"""What a machine type is: cores, memory, GPUs. The table is Google Cloud's; users extend it by a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Machine:
    """`memory` is in GB."""

    cores: int
    memory: float
    gpus: int = 0


# GB a core of each family, and the numbers of cores that it is sold with:
# https://cloud.google.com/compute/docs/machine-types
_FAMILIES = {
    "n1-standard": (3.75, (1, 2, 4, 8, 16, 32, 64, 96)),
    "n1-highmem": (6.5, (2, 4, 8, 16, 32, 64, 96)),
    "n1-highcpu": (0.9, (2, 4, 8, 16, 32, 64, 96)),
    "n2-standard": (4.0, (2, 4, 8, 16, 32, 48, 64, 80)),
    "e2-standard": (4.0, (2, 4, 8, 16, 32)),
    "c2-standard": (4.0, (4, 8, 16, 30, 60)),
}
_GPUS = {
    "a2-highgpu-1g": Machine(12, 85, 1),
    "a2-highgpu-2g": Machine(24, 170, 2),
    "a2-highgpu-4g": Machine(48, 340, 4),
    "a2-highgpu-8g": Machine(96, 680, 8),
    "a2-megagpu-16g": Machine(96, 1360, 16),
}
MACHINES = {
    f"{family}-{cores}": Machine(cores, cores * memory)
    for family, (memory, sizes) in _FAMILIES.items()
    for cores in sizes
} | _GPUS

# The machines of a scale tier that a training with PyTorch can have; the others have parameter servers.
TIERS = {"BASIC": Machine(4, 15), "BASIC_GPU": Machine(8, 30, 1)}


def extended(more: Mapping[str, Any]) -> dict[str, Machine]:
    """The table with a user's machine types: `{"name": {"cores": 8, "memory": 30, "gpus": 1}}`.

    Raises `ValueError` that names the type with something else.
    """
    table = dict(MACHINES)
    for name, fields in more.items():
        try:
            machine = Machine(**fields)
            whole = isinstance(machine.cores, int) and isinstance(machine.gpus, int)
            if not whole or machine.cores < 1 or machine.memory <= 0 or machine.gpus < 0:
                raise ValueError(str(fields))
        except (TypeError, ValueError) as problem:
            raise ValueError(
                f"machine type {name}: {fields!r}; it takes cores, memory (in GB) and gpus, as numbers"
            ) from problem
        table[name] = machine
    return table
