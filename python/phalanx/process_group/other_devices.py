"""The backends of the other devices, in a group for which torch has only one object.

torch makes a group's backends one after another. But if the first is a whole `ProcessGroup`, torch takes it and makes
no others. What the user asked for ("cpu:phalanx,cuda:nccl") is still known afterwards. So the other backends are made
here, when they are first needed, in the way in which torch makes them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import PrefixStore

from . import NAME


class OtherDevices:
    """The backends of one group for the devices that aren't ours."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._made: dict[str, Any] = {}

    def are_known(self) -> bool:
        """Whether torch has finished making the group."""
        return self._group in c10d._world.pg_backend_config

    def names(self) -> dict[str, str]:
        """Device types and the names of their backends, as the group was asked for."""
        config = c10d._world.pg_backend_config.get(self._group)
        if config is None:  # torch is still making the group
            return {"cpu": NAME}
        return {device: str(name) for device, name in _backends_of(config).items()}

    def backend_for(self, device: str) -> Any | None:
        """The backend for a type of device; None if it is ours."""
        if device not in self._made:
            name = self.names().get(device, NAME)
            self._made[device] = None if name == NAME else self._make(device, name)
        return self._made[device]

    def made(self) -> list[Any]:
        """Those that exist already."""
        return [backend for backend in self._made.values() if backend is not None]

    def _make(self, device: str, name: str) -> Any:
        group = self._group
        store = PrefixStore(f"{device}/", c10d._world.pg_map[group][1])
        rank, size, timeout = group.rank(), group.size(), group.options._timeout
        if name == "gloo":
            backend = c10d.ProcessGroupGloo(store, rank, size, timeout=timeout)
        elif name == "nccl":
            backend = self._nccl(store, rank, size, timeout)
        else:
            plugin = c10d.Backend._plugins.get(name.upper())
            if plugin is None or plugin.extended_api:
                raise ValueError(f'beside "cpu:{NAME}", {device} can have nccl or gloo, not {name}')
            backend = plugin.creator_fn(store, rank, size, timeout)
        if name in ("gloo", "nccl"):
            backend._set_sequence_number_for_group()
        return backend

    def _nccl(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        if not c10d.is_nccl_available():
            raise RuntimeError("this torch was built without NCCL")
        options = c10d.ProcessGroupNCCL.Options()
        options.is_high_priority_stream = False
        options._timeout = timeout
        for field in ("global_ranks_in_group", "group_name"):
            if hasattr(options, field):
                setattr(options, field, getattr(self._group.options, field))
        device = torch.cuda.current_device()
        backend = c10d.ProcessGroupNCCL(store, rank, size, options)
        torch.cuda.set_device(device)
        return backend


def _backends_of(config: Any) -> dict[str, Any]:
    return dict(c10d.BackendConfig(config).get_device_backend_map())
