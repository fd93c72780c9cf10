"""The process that has a model: it loads the model that a task brings, and computes batches until nobody needs it.

It is started by a task, below a guard, and belongs to the executor; `PHALANX_MODEL` says what it is told, as JSON:

idle        for how many seconds it stays without a task
threads     how many threads an operation has; 0 for as many as there are processors
sys_path    the caller's `sys.path`
gpu         the one that its tasks have, as `CUDA_VISIBLE_DEVICES` names it; null without
autocast    a type of torch's by name, to which operations are cast that may be; null for none
processes   over how many processes the tasks of an executor are spread; only they read it
format      what the model comes as: `payload`, which Python has packed (`model.py`), or `torchscript`
"""

from __future__ import annotations

import contextlib
import json
import os
import sys

from ..rank import contract, spark_files
from ..rank.payload import Payload, merged_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

_NAME = "phalanx-model"


def path_to_be() -> list[str]:
    """The `sys.path` that this process will have; in a fork of a warm pool."""
    told = json.loads(os.environ[contract.ENV_MODEL])
    return merged_path([*spark_files.entries(os.environ), *sys.path], told["sys_path"])


def main() -> NoReturn:
    """As `run`, in a program of its own."""
    run()


def run() -> NoReturn:
    """Serves, and ends the process."""
    code = 1
    try:
        _serve(json.loads(os.environ.pop(contract.ENV_MODEL)))
        code = 0
    except KeyboardInterrupt:
        pass
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BaseException):
                stream.flush()
        # What the model has left behind, threads and all, is of no use to anybody.
        os._exit(code)


def _serve(told: dict[str, Any]) -> None:
    from .. import _native
    from .trouble import Trouble

    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(_NAME)
    for name in (contract.ENV_ENTRY, contract.ENV_NOTES_FD):
        os.environ.pop(name, None)
    server = _native.ModelServer(float(told["idle"]))
    descriptor = server.model()
    if descriptor is None:
        return
    try:
        from .device import Device
        from .serving import Serving

        device = Device(told["gpu"], told["autocast"])
        model = device.placed(_load(descriptor, told))
    except BaseException as problem:
        server.failed(*Trouble.of(problem))
        raise
    server.ready()
    Serving(server, model, device).serve()


def _load(descriptor: int, told: dict[str, Any]) -> Callable[[Any], Any]:
    import torch

    from ..rank.program import prepare
    from . import loading

    torch.set_num_threads(told["threads"] or len(os.sched_getaffinity(0)))
    path = f"/proc/self/fd/{descriptor}"
    try:
        if told["format"] == "torchscript":
            with open(path, "rb") as file:
                return loading.torchscript(file.read())
        call = prepare(Payload(path), "")
        model: Callable[[Any], Any] = call()
        return model
    finally:
        os.close(descriptor)
