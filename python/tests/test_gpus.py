"""Which GPUs a run gets: the rules that users of pyspark's class know, and the leases."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from phalanx.driver.preflight import Lease
from support.own_session import in_session

pytestmark = pytest.mark.timeout(150)


def lease(gpus: Sequence[str], count: int) -> Lease:
    context = SimpleNamespace(resources={"gpu": SimpleNamespace(addresses=gpus)})
    session = SimpleNamespace(_jsparkSession=None, sparkContext=context, conf={})
    return Lease(session, count, use_gpu=True, local_mode=True)


def test_d08_any_address_that_spark_gives_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = ["0", "GPU-8f4c", "MIG-1c2d"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    taken = lease(addresses, 3)
    taken.release()
    assert taken.gpus == addresses
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aaaa,GPU-bbbb")
    taken = lease(addresses, 3)
    taken.release()
    assert taken.gpus == ["GPU-aaaa", "GPU-8f4c", "MIG-1c2d"], "GPU-1"


def test_d10_concurrent_runs_are_disjoint_and_the_first_free_gpus_are_taken() -> None:
    state = random.getstate()
    environment = dict(os.environ)
    all_gpus = ["0", "1", "2", "3"]
    first, second = lease(all_gpus, 1), lease(all_gpus, 2)
    assert (first.gpus, second.gpus) == (["0"], ["1", "2"]), "GPU-2"
    with pytest.raises(RuntimeError) as raised:
        lease(all_gpus, 2)
    assert str(raised.value) == (
        "the run needs 2 GPUs; the driver has 4, of which 3 are in use by other runs of this process"
    )
    for taken in (first, second, second):
        taken.release()
    everything = lease(all_gpus, 4)
    everything.release()
    assert everything.gpus == all_gpus
    assert random.getstate() == state, "GPU-3"
    assert dict(os.environ) == environment, "GPU-3"


def test_a_client_of_spark_connect_has_the_gpus_that_it_sees_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 7")
    taken = Lease(SimpleNamespace(conf={}), 2, use_gpu=True, local_mode=True)
    taken.release()
    assert taken.gpus == ["5", "7"]


def test_a_real_session_with_a_discovery_script(tmp_path: Path) -> None:
    script = tmp_path / "discover"
    script.write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["1", "0", "MIG-1c2d"]}'\n""")
    script.chmod(0o755)
    answer = in_session(
        "local[2]",
        """
        import logging, os, sys
        import phalanx, phalanx.distributor as module
        from support.fakes import FakeNative, FakeRun
        phalanx._native = FakeNative()
        new_run, module._new_run = module._new_run, FakeRun
        logging.basicConfig(level=logging.CRITICAL)
        os.environ["CUDA_VISIBLE_DEVICES"] = "4,5"
        before = dict(os.environ)
        local = phalanx.TorchDistributor(num_processes=8)
        one = phalanx.TorchDistributor()
        first, second = one.start(print), one.start(print)
        FakeRun.outcome = lambda run: run.fields["lease"].gpus
        try:
            local.run(print)
        except RuntimeError as problem:
            refused = str(problem)
        first.fields["lease"].release()
        second.fields["lease"].release()
        answer = {
            "lowered": local.num_processes,
            "tasks": local.num_tasks,
            "concurrent": [first.fields["lease"].gpus, second.fields["lease"].gpus],
            "refused": refused,
            "all": local.run(print),
            "distributed": phalanx.TorchDistributor(2, local_mode=False, use_gpu=False).run(print),
            "untouched": dict(os.environ) == before,
        }
        try:
            phalanx.TorchDistributor(2, local_mode=False)
        except RuntimeError as problem:
            answer["task"] = str(problem)
        spark.conf.set("spark.task.resource.gpu.amount", "1")
        answer["local master"] = phalanx.TorchDistributor(2, local_mode=False).run(print)
        phalanx._native, module._new_run = sys.modules["phalanx._native"], new_run
        answer["started"] = [one.start(os.getenv, "CUDA_VISIBLE_DEVICES").result() for _ in range(2)]
        """,
        conf={
            "spark.driver.resource.gpu.amount": "3",
            "spark.driver.resource.gpu.discoveryScript": str(script),
        },
    )
    assert (answer["lowered"], answer["tasks"]) == (3, 3), "as pyspark has them in local mode"
    assert answer["concurrent"] == [["5"], ["4"]]
    assert "needs 3 GPUs; the driver has 3, of which 2 are in use" in answer["refused"]
    assert answer["all"] == ["5", "4", "MIG-1c2d"]
    assert answer["distributed"] == []
    assert answer["untouched"], "D7: the caller's environment is never changed"
    assert "was unset, so gpu usage is unavailable" in answer["task"]
    assert answer["local master"] == ["5", "4"]
    assert answer["started"] == ["5"] * 2, "a run that is over has given its GPU back"
