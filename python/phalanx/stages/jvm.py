"""The stage from the JVM: Spark's executors start and watch the ranks themselves.

STAGE-3 (no-python-worker): no Python worker takes part, and executors need no Phalanx in their Python.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..rank import contract
from ..spark.driver_jvm import barrier_runner
from .spark import SparkStage

if TYPE_CHECKING:
    from .. import _native

# py4j sends bytes as base64 in one line of text, of which the JVM makes several copies, and a stage's closure is one
# array. Beyond this a payload goes through a file and Spark's broadcast.
DIRECT_BYTES = 1 << 20


class JvmStage(SparkStage):
    """Tasks of the JVM (`dev.phalanx.spark.BarrierRunner`), submitted by py4j."""

    def _run(self, hub: _native.Hub, attempt: int) -> None:
        context = self._spark.sparkContext
        spec = hub.node_spec(
            attempt,
            python=context.pythonExec,
            env={
                **context.environment,
                contract.ENV_PY_FILES: os.pathsep.join(context._python_includes),
                **self._request.variables,
            },
            local_gpus=self._local_gpus,
        )
        with self._tagged(), _for_jvm(context, self._request.payload.packed) as payload:
            barrier_runner(context).runPython(
                context._jsc.sc(),
                self._job.tasks,
                spec,
                payload,
                self._description,
                self._request.settings.gang,
                self._job.least_tasks,
                0 if self._profile is None else self._profile.id,
            )

    def _add_job(self, partition: int) -> None:
        barrier_runner(self._spark.sparkContext).addSeat(self._tag, partition)

    def _end_other_jobs(self, partition: int, stage: int) -> None:
        barrier_runner(self._spark.sparkContext).endOtherSeats(self._tag, partition, stage)


@contextlib.contextmanager
def _for_jvm(context: Any, payload: bytes) -> Iterator[bytes | str]:
    """A payload as py4j's argument: itself, or where it is large the name of a file that holds it."""
    if len(payload) <= DIRECT_BYTES:
        yield payload
        return
    # The file is its owner's only, and in a folder that goes with the application.
    with tempfile.NamedTemporaryFile(prefix="phalanx-payload-", dir=context._temp_dir) as file:
        file.write(payload)
        file.flush()
        yield file.name
