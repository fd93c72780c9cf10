"""The stage of a run on one host: one node, in a thread of the caller. It needs no Spark."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from .here import Here, Home
from .stage import Stage

if TYPE_CHECKING:
    from .. import _native
    from ..request.run_request import RunRequest


class LocalStage(Stage):
    """All ranks on this host, the node in this process.

    gpus            what the ranks have as `CUDA_VISIBLE_DEVICES`
    env             variables that only this host knows
    copy_files      copies files to a folder by its URI; None where nothing here can
    """

    what = "the driver's own node"

    def __init__(
        self,
        request: RunRequest,
        *,
        gpus: list[str],
        env: dict[str, str],
        copy_files: Callable[[list[str], str], None] | None,
    ) -> None:
        super().__init__(request)
        self._gpus = gpus
        self._env = env
        self._copy_files = copy_files

    def _run(self, hub: _native.Hub, attempt: int) -> None:
        from .. import _native

        spec = hub.node_spec(attempt, python=None, env=self._request.variables, local_gpus=self._gpus)
        _native.run_node(
            _native.NodeSpec(spec),
            self._request.payload.packed,
            Here(0, (0, 0, 0), socket.gethostname(), None, self._request.work_dir, self._env),
            Home.find(in_python_worker=False),
            copy_files=self._copy_files,
        )
