"""The stage of a run on one host: one node, in a thread of the caller. It needs no Spark."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from .home import home
from .stage import Stage

if TYPE_CHECKING:
    from .. import _native


class LocalStage(Stage):
    """All ranks on this host, the node in this process.

    gpus            what the ranks have as `CUDA_VISIBLE_DEVICES`
    variables       what the caller gives the ranks' environment
    work_dir        the folder for the ranks' own folders; it ends with this process
    env             variables that only this host knows
    copy_files      copies files to a folder by its URI; None where nothing here can
    """

    what = "the driver's own node"

    def __init__(
        self,
        *,
        payload: bytes,
        gpus: list[str],
        variables: dict[str, str],
        work_dir: str,
        env: dict[str, str],
        copy_files: Callable[[list[str], str], None] | None,
    ) -> None:
        super().__init__()
        self._payload = payload
        self._variables = variables
        self._gpus = gpus
        self._work_dir = work_dir
        self._env = env
        self._copy_files = copy_files

    def _run(self, hub: _native.Hub, attempt: int) -> None:
        from .. import _native

        spec = hub.node_spec(attempt, python=None, env=self._variables, local_gpus=self._gpus)
        _native.run_node(
            _native.NodeSpec(spec),
            self._payload,
            partition=0,
            host=socket.gethostname(),
            gpus=None,
            work_dir=self._work_dir,
            **home(),
            in_python_worker=False,
            env=self._env,
            copy_files=self._copy_files,
        )
