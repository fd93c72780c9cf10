"""A rank's result with DTensors: of those that are spread over ranks it has this rank's shard alone.

RANK-39 (shards-are-told): whoever takes a value of rank 0 with such shards in it is warned, and told how to return
whole tensors. Counting them fails no result.
"""

from __future__ import annotations

import sys

import cloudpickle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The second is its name before torch 2.5.
_MODULES = ("torch.distributed.tensor", "torch.distributed._tensor")


class ShardCountingPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no type hints
    """cloudpickle's pickler; `shards` is how many DTensors it has met of which this rank has a shard alone."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.shards = 0
        # Where none of these is imported, no value has one.
        self._kinds = tuple(
            sys.modules[name].DTensor for name in _MODULES if hasattr(sys.modules.get(name), "DTensor")
        )

    def reducer_override(self, obj: Any) -> Any:
        if issubclass(type(obj), self._kinds):
            self.shards += _is_shard(obj)
        return super().reducer_override(obj)


def _is_shard(tensor: Any) -> bool:
    try:
        mesh = tensor.device_mesh
        return any(
            mesh.size(dimension) > 1 and not placement.is_replicate()
            for dimension, placement in enumerate(tensor.placements)
        )
    except Exception:
        return False
