"""Which GPUs a run gets: the rules that users of pyspark's class know, and the leases."""

from __future__ import annotations

import logging
import os
import random
from pathlib import Path

import pytest
from phalanx import gpus
from support import in_session

pytestmark = pytest.mark.timeout(150)
LOGGER = logging.getLogger("test")
GPU = {"gpu": object()}
NO_CONF: dict[str, str] = {}


def test_local_mode_needs_gpus_that_spark_knows_of() -> None:
    with pytest.raises(RuntimeError, match=r"^GPUs were unable to be found on the driver\.$"):
        gpus.driver_limited(1, NO_CONF.get, {}, LOGGER)
    with pytest.raises(RuntimeError, match=r"^GPU resources were not configured properly on the driver\.$"):
        gpus.driver_limited(1, NO_CONF.get, GPU, LOGGER)


def test_local_mode_lowers_num_processes_with_the_known_warning(caplog: pytest.LogCaptureFixture) -> None:
    conf = {"spark.driver.resource.gpu.amount": "2"}
    assert gpus.driver_limited(2, conf.get, GPU, LOGGER) == 2
    assert not caplog.records
    assert gpus.driver_limited(5, conf.get, GPU, LOGGER) == 2
    assert caplog.records[0].message == (
        "'num_processes' cannot be set to a value greater than the number of available GPUs on the driver, "
        "which is 2. 'num_processes' was reset to be equal to the number of available GPUs."
    )


def test_tasks_of_the_cluster() -> None:
    def tasks(num_processes: int, amount: str | None, use_gpu: bool = True) -> int:
        return gpus.num_tasks(num_processes, use_gpu=use_gpu, conf_get=lambda key: amount)

    assert tasks(8, "1") == 8
    assert tasks(8, "4") == 2
    assert tasks(8, None, use_gpu=False) == 8
    unset = "'spark.task.resource.gpu.amount' was unset, so gpu usage is unavailable."
    for amount in (None, "0"):
        with pytest.raises(RuntimeError) as raised:
            tasks(8, amount)
        assert str(raised.value) == unset
    with pytest.raises(RuntimeError) as raised:
        tasks(9, "4")
    assert str(raised.value) == (
        "TorchDistributor 'num_processes' value (9) must be a multiple of "
        "'spark.task.resource.gpu.amount' (4) value."
    )
    with pytest.raises(RuntimeError, match=r"is 0\.25, but a rank needs a GPU of its own"):
        tasks(8, "0.25")


def test_d08_any_address_that_spark_gives_is_taken() -> None:
    addresses = ["0", "GPU-8f4c", "MIG-1c2d"]
    assert gpus.devices(addresses, None) == addresses
    assert gpus.devices(addresses, "GPU-aaaa,GPU-bbbb") == ["GPU-aaaa", "GPU-8f4c", "MIG-1c2d"], "GPU-1"


def test_integer_addresses_count_what_the_driver_sees() -> None:
    assert gpus.devices(["1", "0"], "5, 7") == ["7", "5"]
    with pytest.raises(ValueError, match=r"GPU 2 is not among the 2 of CUDA_VISIBLE_DEVICES='5,7'"):
        gpus.devices(["2"], "5,7")
    with pytest.raises(ValueError, match="not among the 0"):
        gpus.devices(["0"], "")


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
