"""One task of the Python stage, in a Python worker of Spark: it is a node of the run."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .here import Here, Home
from .spark_files import workers_files

if TYPE_CHECKING:
    from pyspark import BarrierTaskContext, Broadcast


def run_task(
    rows: Iterable[Any],
    *,
    spec: bytes,
    payload: bytes | str | Broadcast[bytes],
    of_dataframe: bool,
    stream: tuple[str, int] | None,
    in_executor: bool,
    relay: str | None,
    barrier: bool,
) -> None:
    """The node of one task, to its end.

    `rows` are the partition's: Arrow's batches if it is one `of_dataframe` or a `stream` (the name of a data set, and
    how many ranks of this task take it), of no meaning else. `spec` is what the hub tells every node; `payload` is a
    name where it came as a file of Spark's, and a broadcast where many jobs share it. `in_executor` says that this
    worker's stderr is an executor's, and not the driver's. `relay` is the way to the hub through the Spark Connect
    server, if there is one. `barrier` says that the task is in a barrier stage.
    """
    from pyspark import BarrierTaskContext, Broadcast, TaskContext

    from .. import _native

    if isinstance(payload, str):
        from pyspark import SparkFiles

        with open(SparkFiles.get(payload), "rb") as file:
            payload = file.read()
    elif isinstance(payload, Broadcast):
        payload = payload.value
    node_spec = _native.NodeSpec(spec)
    context = BarrierTaskContext.get() if barrier else TaskContext.get()
    assert context is not None
    partition = context.partitionId()
    # WAY-6
    tunnel = context.getLocalProperty(f"phalanx.tunnel.address.{partition}")
    host = (
        _host_in(context, node_spec.tasks)
        if isinstance(context, BarrierTaskContext)
        else socket.gethostname()
    )
    given = context.resources().get("gpu")
    work_dir = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    with contextlib.ExitStack() as stack:
        env = workers_files()
        if of_dataframe:
            from ..feeding.partitions.partitions import partition_file

            env |= stack.enter_context(partition_file(rows, work_dir))
        if stream is not None:
            from ..feeding.stream.feeder import Feeder
            from ..request.payload import with_stream

            name, ranks = stream
            feeder = stack.enter_context(contextlib.closing(Feeder(rows, ranks, name)))
            payload, rows = with_stream(payload, name, feeder.address), ()
        # Spark takes a worker whose input was left unread for broken, and the next task waits for another: seconds.
        for _ in rows:
            pass
        here = Here(
            partition=partition,
            task=(context.stageId(), context.taskAttemptId(), context.attemptNumber()),
            host=host,
            gpus=None if given is None else list(given.addresses),
            work_dir=work_dir,
            env=env,
            tunnel=tunnel,
            relay=relay,
        )
        own_home = Home.find(in_python_worker=True)
        _native.run_node(node_spec, payload, here, own_home, in_executor=in_executor)


def _host_in(context: BarrierTaskContext, tasks: int) -> str:
    """The host of this task of a barrier stage, as Spark calls it."""
    addresses = [info.address for info in context.getTaskInfos()]
    if len(addresses) != tasks:
        raise RuntimeError(
            f"the DataFrame has {len(addresses)} partitions and the run has {tasks} tasks; repartition it to {tasks}"
        )
    return host_of(addresses[context.partitionId()])


def host_of(address: str) -> str:
    """The host of Spark's `host:port`, which may be an IPv6 address in brackets or without any."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or (":" in host and not host.startswith("[")):
        host = address
    return host.strip("[]")
