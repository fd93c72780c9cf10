"""The stage of `local_mode=True`: one node, in a thread of the driver."""

from __future__ import annotations

import functools
import socket
from typing import TYPE_CHECKING

from ..driver.session import copy_by_hadoop, driver_dir
from .home import home
from .spark_files import drivers_files
from .stage import Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .. import _native


class LocalStage(Stage):
    """`local_mode=True`: all ranks on the driver's host, the node in this process."""

    what = "the driver's own node"

    def __init__(
        self, *, spark: SparkSession, payload: bytes, gpus: list[str], variables: dict[str, str]
    ) -> None:
        super().__init__()
        self._payload = payload
        self._variables = variables
        self._gpus = gpus
        self._work_dir = driver_dir(spark)
        self._env = drivers_files(spark)
        self._copy_files = functools.partial(copy_by_hadoop, spark)

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
            all_gather=None,
            copy_files=self._copy_files,
        )
