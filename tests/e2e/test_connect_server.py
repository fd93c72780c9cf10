"""A client of Spark Connect whose server hasn't the plugin: files, cancels, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.own_session import in_session
from support.tiers import whole

pytestmark = pytest.mark.timeout(200)


@whole("a server without the plugin")
def test_runs_over_a_connect_server(tmp_path: Path) -> None:
    (tmp_path / "of_py.py").write_text("WHERE = 'py'")
    text = f"""
        import logging, os, sys, time
        from phalanx import TorchDistributor, TrainingError

        def train(data):
            import of_py
            from pyspark import SparkFiles
            return len(data), of_py.WHERE, SparkFiles.get("of_py.py") == of_py.__file__

        spark.addArtifacts({str(tmp_path / "of_py.py")!r}, pyfile=True)
        distributor = TorchDistributor(num_processes=1, local_mode=False, use_gpu=False)
        answer = [distributor.run(train, bytes(100)), distributor.run(train, bytes(90 << 20))]

        def sleep():
            import time
            time.sleep(100)

        spark.addTag("the-users")
        run = distributor.start(sleep)
        spark.removeTag("the-users")
        until = time.monotonic() + 60
        while "user code" not in [phase.name for phase in run.phases]:
            assert time.monotonic() < until
            time.sleep(0.02)
        spark.interruptTag("the-users")
        try:
            run.result(30)
        except TrainingError as error:
            answer += [error.kind, error.message]
        answer.append(list(spark.getTags()))
        try:
            TorchDistributor(num_processes=2, local_mode=False, use_gpu=False).run(sleep)
        except RuntimeError as error:
            answer.append(str(error))
        answer.append(TorchDistributor(num_processes=2, use_gpu=False).run(lambda: "local"))
        spark.conf.set("spark.phalanx.connect", "relay")
        try:
            TorchDistributor(num_processes=1, local_mode=False, use_gpu=False).run(sleep)
        except RuntimeError as error:
            answer.append(str(error))
    """
    small, large, kind, message, tags, refused, local, relayed = in_session(
        "local[1]", text, connect=True, timeout=190
    )
    assert small == [100, "py", True], "WAY-11: a client has no JVM"
    assert large == [90 << 20, "py", True]
    assert kind == "cancelled"
    assert (
        message == "the job was cancelled: [OPERATION_CANCELED] Operation has been canceled. SQLSTATE: HY008"
    )
    assert tags == [], "STAGE-5"
    assert "with master local[1] there are never more than 1" in refused
    assert local == "local"
    assert "is relay, but this session's Spark Connect server doesn't have Phalanx's plugin" in relayed
