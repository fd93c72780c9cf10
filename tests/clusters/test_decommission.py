"""A worker that is decommissioned: from Spark's word to a saved checkpoint, and on elsewhere."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import phalanx
import pytest
from support.breathing import BREATHES, PARTS
from support.cluster import Host, Standalone
from support.own_session import in_session
from support.tiers import whole

pytestmark = [pytest.mark.timeout(300), whole("a standalone cluster")]

DECOMMISSION = {"spark.decommission.enabled": "true"}
PROGRAM = """
import os, tempfile
folder = tempfile.mkdtemp()

def train(folder, steps):
    import os, socket, time
    import torch
    import torch.distributed as dist
    from phalanx import checkpoint
    dist.init_process_group("gloo")
    saved = checkpoint.latest(directory=folder)
    first, state = saved if saved is not None else (0, torch.zeros(1))
    for step in range(first, steps):
        checkpoint.save_if_preempted(state, step, directory=folder)
        ones = torch.ones(1)
        dist.all_reduce(ones)
        state += ones / dist.get_world_size()
        if step == 20 and first == 0:
            with open(os.path.join(folder, "trains-" + os.environ["RANK"]), "w") as file:
                file.write(os.environ["SPARK_LOCAL_IP"])
        time.sleep(0.05)
    return first, int(state), os.environ["TORCHELASTIC_RESTART_COUNT"]

def trains():
    return len([name for name in os.listdir(folder) if name.startswith("trains-")])
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    """Two hosts; either has room for the whole run."""
    hosts = (Host(), Host("127.0.0.2"))
    standalone = Standalone(tmp_path / "cluster", hosts, cores=2, daemon_conf=DECOMMISSION)
    yield standalone
    standalone.stop()


@pytest.mark.parametrize("starter", ["python", "jvm"])
@pytest.mark.parametrize("gang", ["barrier", "tasks"])
def test_ranks_save_before_a_decommissioned_worker_goes_and_go_on_elsewhere(
    cluster: Standalone, starter: str, gang: str
) -> None:
    workers = {host.address: worker.pid for host, worker in zip(cluster.hosts, cluster.workers, strict=True)}
    local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    elastic = BREATHES if gang == "tasks" else {"spark.executor.cores": "1", "spark.executor.memory": "512m"}
    conf: dict[str, Any] = (
        elastic
        | local
        | DECOMMISSION
        | {
            "spark.jars": phalanx.jar_path(),
            "spark.phalanx.grace": "2s",
            "spark.deploy.spreadOut": "true",
        }
    )
    answer = in_session(
        cluster.url,
        PARTS
        + textwrap.dedent(PROGRAM)
        + textwrap.dedent(f"""
        run = of({starter!r}).start(train, folder, 400)
        until(lambda: trains() == 2, 120)
        time.sleep(1)
        os.kill({workers}[open(os.path.join(folder, "trains-0")).read()], {int(signal.SIGPWR)})
        result = run.result(150)
        answer = dict(result=result, restarts=run.snapshot()["restarts"])
        """),
        conf=conf,
        timeout=250,
    )
    first, steps, attempts = answer["result"]
    assert first > 20
    assert steps == 400, "no step is done twice, and none is left out"
    assert attempts == "1"
    (restart,) = answer["restarts"]
    assert "Spark decommissions its executor" in restart["cause"], restart
