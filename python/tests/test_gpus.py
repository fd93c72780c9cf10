"""Which GPUs a run gets: the rules that users of pyspark's class know, and the leases."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from phalanx import gpus
from support import in_session

pytestmark = pytest.mark.timeout(150)
GPU = {"gpu": object()}


def test_d08_any_address_that_spark_gives_is_taken() -> None:
    addresses = ["0", "GPU-8f4c", "MIG-1c2d"]
    assert gpus.devices(addresses, None) == addresses
    assert gpus.devices(addresses, "GPU-aaaa,GPU-bbbb") == ["GPU-aaaa", "GPU-8f4c", "MIG-1c2d"], "GPU-1"


def test_d10_concurrent_runs_are_disjoint_and_the_first_free_gpus_are_taken() -> None:
    state = random.getstate()
    environment = dict(os.environ)
    all_gpus = ["0", "1", "2", "3"]
    with gpus.taken(all_gpus, 1) as first, gpus.taken(all_gpus, 2) as second:
        assert (first, second) == (["0"], ["1", "2"]), "GPU-2"
        with pytest.raises(RuntimeError) as raised:
            gpus.take(all_gpus, 2)
        assert str(raised.value) == (
            "the run needs 2 GPUs; the driver has 4, of which 3 are in use by other runs of this process"
        )
    with gpus.taken(all_gpus, 4) as everything:
        assert everything == all_gpus
    assert random.getstate() == state, "GPU-3"
    assert dict(os.environ) == environment, "GPU-3"


def test_a_lease_ends_with_its_block_whatever_happens() -> None:
    with pytest.raises(KeyError), gpus.taken(["0"], 1):
        raise KeyError
    lease = gpus.take(["0"], 1)
    lease.release()
    lease.release()
    gpus.take(["0"], 1).release()


def test_a_lease_ends_when_its_run_is_over() -> None:
    over: list[bool] = []
    gpus.take(["0"], 1).release_when(lambda: bool(over))
    with pytest.raises(RuntimeError, match="1 are in use"):
        gpus.take(["0"], 1)
    over.append(True)
    gpus.take(["0"], 1).release()


def test_a_real_session_with_a_discovery_script(tmp_path: Path) -> None:
    script = tmp_path / "discover"
    script.write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["1", "0", "MIG-1c2d"]}'\n""")
    script.chmod(0o755)
    answer = in_session(
        "local[2]",
        """
        import logging, os
        import phalanx, phalanx.distributor as module
        from support import FakeNative, FakeRun
        phalanx._native = FakeNative()
        module._new_run = FakeRun
        logging.basicConfig(level=logging.CRITICAL)
        os.environ["CUDA_VISIBLE_DEVICES"] = "4,5"
        before = dict(os.environ)
        local = phalanx.TorchDistributor(num_processes=8)
        one = phalanx.TorchDistributor()
        first, second = one.start(print), one.start(print)
        FakeRun.outcome = lambda run: run.fields["gpus"]
        try:
            local.run(print)
        except RuntimeError as problem:
            refused = str(problem)
        first.done = second.done = True
        answer = {
            "lowered": local.num_processes,
            "tasks": local.num_tasks,
            "concurrent": [first.fields["gpus"], second.fields["gpus"]],
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
        """,
        conf={
            "spark.driver.resource.gpu.amount": "3",
            "spark.driver.resource.gpu.discoveryScript": str(script),
        },
    )
    assert (answer["lowered"], answer["tasks"]) == (3, 1)
    assert answer["concurrent"] == [["5"], ["4"]]
    assert "needs 3 GPUs; the driver has 3, of which 2 are in use" in answer["refused"]
    assert answer["all"] == ["5", "4", "MIG-1c2d"]
    assert answer["distributed"] == []
    assert answer["untouched"], "D7: the caller's environment is never changed"
    assert "was unset, so gpu usage is unavailable" in answer["task"]
    assert answer["local master"] == ["5", "4"]
