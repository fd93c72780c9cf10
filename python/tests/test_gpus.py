"""Which GPUs a run gets: the rules that users of pyspark's class know, and the leases."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from phalanx.request.preflight import Lease

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
    assert taken.gpus == ["GPU-aaaa", "GPU-8f4c", "MIG-1c2d"], "JOB-17"


def test_d10_concurrent_runs_are_disjoint_and_the_first_free_gpus_are_taken() -> None:
    state = random.getstate()
    environment = dict(os.environ)
    all_gpus = ["0", "1", "2", "3"]
    first, second = lease(all_gpus, 1), lease(all_gpus, 2)
    assert (first.gpus, second.gpus) == (["0"], ["1", "2"]), "JOB-18"
    with pytest.raises(RuntimeError) as raised:
        lease(all_gpus, 2)
    assert str(raised.value) == (
        "the run needs 2 GPUs; the driver has 4, of which 3 are in use by other runs of this process; wait "
        "for those runs, or lower num_processes"
    )
    for taken in (first, second, second):
        taken.release()
    everything = lease(all_gpus, 4)
    everything.release()
    assert everything.gpus == all_gpus
    assert random.getstate() == state, "REQUEST-3"
    assert dict(os.environ) == environment, "REQUEST-3"


def test_a_client_of_spark_connect_has_the_gpus_that_it_sees_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 7")
    taken = Lease(SimpleNamespace(conf={}), 2, use_gpu=True, local_mode=True)
    taken.release()
    assert taken.gpus == ["5", "7"]
