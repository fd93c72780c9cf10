"""`init_process_group("phalanx")`: torch's process group over the native collectives.

BAC-1: in a map like "cpu:phalanx,cuda:nccl" each device's tensors go to its own backend.

From torch 2.15 on a Python class can be a c10d `Backend`; before that only a whole `ProcessGroup`, in whose place
torch then uses nothing else of a map, so that here the group itself holds the other devices' backends.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
from torch._C._distributed_c10d import Backend, ProcessGroup

from .backend_operations import Operations
from .companions import Companions
from .registration import NAME


def create(options: Any, backend_options: Any = None) -> Any:
    """Joins the process group of torch's `_DistributedBackendOptions`; what `register_backend` is given."""
    kind = PhalanxBackend if _BACKEND_CAN_BE_PYTHON else PhalanxGroup
    return kind(options)


# What takes tensors, in every spelling.
_ON_TENSORS = [
    *(
        "allreduce",
        "allreduce_coalesced",
        "allreduce_sparse",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_single",
    ),
    *(
        "reduce_scatter_single_coalesced",
        "_reduce_scatter_base",
        "reduce_scatter_tensor_coalesced",
        "broadcast",
    ),
    *(
        "allgather",
        "allgather_coalesced",
        "all_gather_single",
        "all_gather_single_coalesced",
        "_allgather_base",
    ),
    *(
        "allgather_into_tensor_coalesced",
        "alltoall",
        "alltoall_base",
        "all_to_all_single",
        "gather",
        "scatter",
    ),
    *("send", "recv", "recv_anysource"),
]


class PhalanxGroup(Operations, ProcessGroup):  # type: ignore[misc]
    """A whole process group, for torch before 2.15."""

    supports_splitting = supports_coalescing = supports_time_estimate = supports_shrinking = False

    def __init__(self, options: Any) -> None:
        super(Operations, self).__init__(options.group_rank, options.group_size)  # type: ignore[call-arg]
        self._companions = Companions(self)
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
        return [torch.device(device) for device in self._companions.names()]

    def _get_backend(self, device: torch.device) -> Any:
        if device.type not in self._companions.names():
            raise RuntimeError(f"No backend type associated with device type {device.type}")
        return self._companions.backend_for(device.type) or self

    def _get_backend_name(self) -> str:
        return NAME

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        pass

    def abort(self) -> None:
        super().abort()
        for backend in self._companions.made():
            backend.abort()

    def shutdown(self) -> None:
        for backend in self._companions.made():
            backend.shutdown()
        super().shutdown()


def _routed(name: str) -> Callable[..., Any]:
    own = getattr(Operations, name)

    def operation(self: PhalanxGroup, *args: Any, **kwargs: Any) -> Any:
        device = _device_of(args)
        if device != "cpu":
            other = self._companions.backend_for(device)
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


class PhalanxBackend(Operations, Backend):
    """A backend of one device among others, for torch that can have one in Python."""

    def __init__(self, options: Any) -> None:
        Backend.__init__(self, options.group_rank, options.group_size)
        self._open(options)


def _backend_can_be_python() -> bool:
    try:
        Backend(0, 1)
    except TypeError:
        return False
    return True


_BACKEND_CAN_BE_PYTHON = _backend_can_be_python()


def monitored_barrier(group: Any, timeout: Any, wait_all_ranks: bool) -> None:
    """`torch.distributed.monitored_barrier` of a group of this backend."""
    if isinstance(timeout, float | int):
        timeout = timedelta(seconds=timeout)
    backend = group._get_backend(torch.device("cpu"))
    backend.monitored_barrier(timeout, wait_all_ranks)
