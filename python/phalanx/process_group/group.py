"""`init_process_group("phalanx")`: torch's process group over the native collectives.

BACKEND-1 (device-backends): in a map like "cpu:phalanx,cuda:nccl" each device's tensors go to its own backend.

The group is a Python `ProcessGroup`, which torch accepts in place of its own since 2.0. A c10d `Backend` can be written
in Python only from torch 2.15 on. There its works lose what they know on the way through C++ (whether they are done,
who sent a message), and each call takes one more passage through the dispatcher. In place of the group torch uses
nothing else of a map, so the group itself holds the other devices' backends.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroup

from . import NAME
from .operations import Operations
from .other_devices import OtherDevices
from .untraced import leave_to_python


def create(options: Any, backend_options: Any = None) -> Any:
    """Joins the process group of torch's `_DistributedBackendOptions`; what `register_backend` is given."""
    _leave_to_python()
    return PhalanxGroup(options)


@functools.cache
def _leave_to_python() -> None:
    modules = ("arguments", "group", "membership", "monitored_barrier", "operations", "other_devices")
    names = (f"{__package__}.{module}" for module in (*modules, "plan", "sparse", "work"))
    leave_to_python(*(sys.modules[name] for name in names))


# What takes tensors, in every spelling.
# fmt: off
_ON_TENSORS = [
    "allreduce", "allreduce_coalesced", "allreduce_sparse", "reduce", "broadcast", "gather", "scatter",
    "send", "recv", "recv_anysource",
    "reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base",
    "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced",
    "allgather", "allgather_coalesced", "all_gather_single", "_allgather_base",
    "all_gather_single_coalesced", "allgather_into_tensor_coalesced",
    "alltoall", "all_to_all_single", "alltoall_base",
]
# fmt: on


class PhalanxGroup(Operations, ProcessGroup):  # type: ignore[misc]
    """The process group; its tensors of other devices go to their backends, if it was asked for with such."""

    def __init__(self, options: Any) -> None:
        super(Operations, self).__init__(options.group_rank, options.group_size)  # type: ignore[call-arg]
        self._other_devices = OtherDevices(self)
        self._description = ""
        self._open(options)

    @property
    def options(self) -> Any:
        return SimpleNamespace(
            backend=NAME,
            _timeout=self._timeout,
            global_ranks_in_group=self._global_ranks,
            group_name=self._name,
        )

    # torch keeps names in the backends of a group; this one has none.
    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def getGroupDesc(self) -> str:
        return self._description

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc  # type: ignore[assignment]
    group_name, group_desc = property(getGroupName), property(getGroupDesc)

    def get_group_store(self) -> Any:
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        # None while torch makes the group: from 2.15 on it would hang a recorder on the C++ backends that aren't there.
        return [
            torch.device(device) for device in self._other_devices.names() if self._other_devices.are_known()
        ]

    def _get_backend(self, device: torch.device) -> Any:
        if device.type not in self._other_devices.names():
            raise RuntimeError(f"No backend type associated with device type {device.type}")
        return self._other_devices.backend_for(device.type) or self

    def _get_backend_name(self) -> str:
        return NAME

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        pass

    def abort(self) -> None:
        super().abort()
        for backend in self._other_devices.made():
            backend.abort()

    def shutdown(self) -> None:
        for backend in self._other_devices.made():
            backend.shutdown()
        super().shutdown()


def _routed(name: str) -> Callable[..., Any]:
    own = getattr(Operations, name)

    def operation(self: PhalanxGroup, *args: Any, **kwargs: Any) -> Any:
        device = _device_of(args)
        if device != "cpu":
            other = self._other_devices.backend_for(device)
            if other is not None:
                return getattr(other, name)(*args, **kwargs)
        return own(self, *args, **kwargs)

    operation.__name__ = name
    operation.__doc__ = own.__doc__
    return operation


def _device_of(values: Any) -> str:
    """The type of the first tensor's device."""
    for value in values:
        if isinstance(value, torch.Tensor):
            return "cpu" if value.is_cpu else value.device.type
        if isinstance(value, list | tuple) and value:
            return _device_of(value)
    return "cpu"


for _name in _ON_TENSORS:
    setattr(PhalanxGroup, _name, _routed(_name))
