"""Ranks continue the caller's MLflow run, and what they are given for it is seen nowhere else."""

from __future__ import annotations

import logging
import os
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import mlflow
import pytest
from phalanx import TorchDistributor, TrainingError
from support.mlflow_server import mlflow_server
from support.programs import eventually, executors
from support.tiers import whole

pytestmark = pytest.mark.timeout(200)

SECRETS = {
    "GIVEN_TOKEN": "given-5f1c0a",
    "PASSED_TOKEN": "passed-77be21",
    "MLFLOW_TRACKING_TOKEN": "tracking-c3d4",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    before = mlflow.get_tracking_uri()
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as address:
        mlflow.set_tracking_uri(address)
        yield address
        mlflow.set_tracking_uri(before)


def train() -> dict[str, Any]:
    import os
    from hashlib import sha256
    from pathlib import Path

    import mlflow

    rank = int(os.environ["RANK"])
    mlflow.log_metric("logged", 10.0 + rank)
    mlflow.log_param(f"of_{rank}", rank)
    names = ("GIVEN_TOKEN", "PASSED_TOKEN", "MLFLOW_TRACKING_TOKEN")
    secrets = {name: os.environ.get(name, "") for name in names}
    shown = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
        except OSError:
            continue
        shown += [name for name, value in secrets.items() if value.encode() in line]
    folder = Path(os.environ["PHALANX_RANK_DIR"])
    for path in [path for path in folder.parent.rglob("*") if path.is_file()]:
        shown += [str(path) for value in secrets.values() if value.encode() in path.read_bytes()]
    # The result is a file, too.
    codes = {name: sha256(value.encode()).hexdigest() for name, value in secrets.items()}
    run = mlflow.active_run().info.run_id
    return {"run": run, "codes": codes, "shown": shown, "mode": folder.stat().st_mode & 0o777}


def texts_of(spark: Any) -> dict[str, str]:
    """What Spark shows and writes: settings, the pages that its UI serves, the event log, the executors' logs."""
    context = spark.sparkContext
    found = {"conf": str(context.getConf().getAll()) + str(spark.conf.getAll)}
    api = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
    for page in ("environment", "jobs", "stages", "executors", "sql"):
        with urllib.request.urlopen(f"{api}/{page}", timeout=30) as answer:
            found[page] = answer.read().decode()
    events = Path(context.getConf().get("spark.eventLog.dir").removeprefix("file://"))
    logs = [path for path in events.rglob("*") if path.is_file()]
    for process in executors(os.getpid()):
        logs += [Path(process.cwd()) / name for name in ("stdout", "stderr")]
    return found | {str(path): path.read_text(errors="replace") for path in logs}


@whole("a run with a server of its own")
def test_rank_0_logs_to_the_callers_run_no_other_rank_makes_one_and_no_secret_is_seen(
    spark: Any,
    server: str,
    over: str,
    ranks: Callable[..., TorchDistributor],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG, "phalanx")
    monkeypatch.setenv("PASSED_TOKEN", SECRETS["PASSED_TOKEN"])
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", SECRETS["MLFLOW_TRACKING_TOKEN"])
    given = {"GIVEN_TOKEN": SECRETS["GIVEN_TOKEN"]}
    experiment = mlflow.set_experiment(f"over {over}").experiment_id
    with mlflow.start_run() as run:
        results = ranks(env=given).start(train).results(90)
        mlflow.log_metric("after", 1.0)
        client = mlflow.MlflowClient()
        assert client.get_run(run.info.run_id).info.status == "RUNNING", "LIBRARY-7"
    kept = client.get_run(run.info.run_id)
    assert (kept.info.status, kept.data.metrics) == ("FINISHED", {"logged": 10.0, "after": 1.0})
    assert kept.data.params == {"of_0": "0"}, "RANK-31"
    assert [other.info.run_id for other in client.search_runs([experiment])] == [run.info.run_id]
    assert results[0]["run"] == run.info.run_id
    assert results[1]["run"] != run.info.run_id
    for rank in results:
        codes = {name: sha256(value.encode()).hexdigest() for name, value in SECRETS.items()}
        assert (rank["codes"], rank["shown"], rank["mode"]) == (codes, [], 0o700)
    seen = texts_of(spark) | {"log": caplog.text, "output": "".join(capfd.readouterr())}
    for secret in SECRETS.values():
        assert [where for where, text in seen.items() if secret in text] == []


def test_a_failed_training_marks_the_run_with_the_cause_and_its_reports_are_metrics(
    spark: Any, server: str
) -> None:
    def fails() -> None:
        import os
        import time

        import phalanx

        for step in (1, 2):
            phalanx.report(step=step, loss=1.0 / step, note="words are no metric", **{"acc@1": 0.1})
            time.sleep(0.7)
        if os.environ["RANK"] == "1":
            raise ValueError("the batch is empty")
        time.sleep(30)

    mlflow.set_experiment("failures")
    run = mlflow.start_run()
    try:
        with pytest.raises(TrainingError):
            TorchDistributor(2, local_mode=True, use_gpu=False, mlflow=True, grace=0).run(fails)
        kept = mlflow.get_run(run.info.run_id)
        assert kept.info.status == "FAILED", "LIBRARY-7"
        assert kept.data.tags["phalanx.failure"] == "exception"
        assert "ValueError: the batch is empty" in kept.data.tags["phalanx.cause"]
        history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
        assert [(metric.step, metric.value) for metric in history] == [(1, 1.0), (2, 0.5)]
        assert kept.data.metrics == {"loss": 0.5, "acc_1": 0.1}
    finally:
        mlflow.end_run("FAILED")


def test_a_cancelled_training_kills_the_run(spark: Any, server: str) -> None:
    def waits() -> None:
        import time

        time.sleep(60)

    mlflow.set_experiment("cancels")
    with pytest.raises(TrainingError) as raised, mlflow.start_run() as active:  # noqa: PT012
        run = TorchDistributor(2, local_mode=True, use_gpu=False, grace=0).start(waits)
        run.cancel("enough")
        run.result(60)
    assert raised.value.kind == "cancelled"
    kept = mlflow.get_run(active.info.run_id)
    assert (kept.info.status, kept.data.tags["phalanx.failure"]) == ("KILLED", "cancelled"), "LIBRARY-7"


def history(run_id: str, name: str) -> list[tuple[int, float]]:
    kept = mlflow.MlflowClient().get_metric_history(run_id, name)
    assert all(0 <= later.timestamp - kept[0].timestamp < 60_000 for later in kept), "LIBRARY-10"
    return [(metric.step, metric.value) for metric in kept]


def tags(run_id: str) -> dict[str, str]:
    return dict(mlflow.get_run(run_id).data.tags)


def test_each_report_of_each_rank_is_a_metric_in_order(
    spark: Any, server: str, over: str, ranks: Callable[..., TorchDistributor]
) -> None:
    def reports() -> None:
        import time

        import phalanx

        for step in range(1000):
            phalanx.report(step=step, loss=step / 2)
            time.sleep(0.002)

    mlflow.set_experiment(f"each report over {over}")
    with mlflow.start_run() as run:
        ranks(mlflow="all").run(reports)
    kept = mlflow.get_run(run.info.run_id)
    assert "phalanx.reports_left_out" not in kept.data.tags
    for name in ("loss", "rank_1/loss"):
        assert history(run.info.run_id, name) == [(step, step / 2) for step in range(1000)], "LIBRARY-10"


def test_the_last_reports_of_a_rank_that_is_killed_and_of_one_that_is_stopped_are_there(
    spark: Any, server: str, over: str, ranks: Callable[..., TorchDistributor]
) -> None:
    def fails(folder: str) -> None:
        import os
        import signal
        import time
        from pathlib import Path

        import phalanx

        for step in range(120):
            phalanx.report(step=step, loss=step)
        here = Path(folder, os.environ["RANK"])
        here.touch()
        if os.environ["RANK"] == "1":
            while not here.with_name("0").exists():
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    mlflow.set_experiment(f"last reports over {over}")
    run = mlflow.start_run()
    try:
        distributor = ranks(mlflow="all", grace=0)
        with pytest.raises(TrainingError) as raised, tempfile.TemporaryDirectory() as folder:
            distributor.run(fails, folder)
        assert raised.value.kind == "signal"
        assert distributor.last_run is not None
        shown = distributor.last_run.snapshot()["ranks"]
        assert [rank["step"] for rank in shown] == [119, 119], "NODE-53"
        assert {rank: of["step"] for rank, of in distributor.last_run.reports.items()} == {0: 119, 1: 119}
        for name in ("loss", "rank_1/loss"):
            assert history(run.info.run_id, name) == [(step, step) for step in range(120)], "LIBRARY-10"
    finally:
        mlflow.end_run("FAILED")


@whole("many reports, for some")
def test_of_a_flood_the_newest_are_there_and_a_tag_says_how_many_are_not(spark: Any, server: str) -> None:
    def floods() -> None:
        import phalanx

        for step in range(200_000):
            phalanx.report(step=step, loss=0.5)

    mlflow.set_experiment("floods")
    with mlflow.start_run() as run:
        TorchDistributor(1, local_mode=True, use_gpu=False, mlflow=True).run(floods)
    # The run's end doesn't wait for a slow server, which gets the tag last.
    eventually("the tag is there", 60, lambda: "phalanx.reports_left_out" in tags(run.info.run_id))
    steps = [step for step, _ in history(run.info.run_id, "loss")]
    assert len(steps) + int(tags(run.info.run_id)["phalanx.reports_left_out"]) == 200_000, "LIBRARY-10"
    assert steps == sorted(set(steps))
    assert steps[-1] == 199_999, "LIBRARY-9"


@whole("another report, which python/tests/test_mlflow_context.py has")
def test_what_a_restart_has_cost_is_with_the_run_that_ends_well(spark: Any, server: str) -> None:
    def is_killed_once() -> int:
        import os
        import signal
        import time

        import phalanx

        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        for step in range(20):
            phalanx.report(step=step, loss=step)
            time.sleep(0.05)
        if attempt == 0 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        if attempt == 0:
            time.sleep(60)
        return attempt

    mlflow.set_experiment("restarts")
    with mlflow.start_run() as run:
        distributor = TorchDistributor(2, local_mode=True, use_gpu=False, grace=0, max_restarts=1)
        assert distributor.run(is_killed_once) == 1
    number = run.info.run_id
    assert mlflow.get_run(number).info.status == "FINISHED"
    assert history(number, "phalanx/world_size") == [(1, 2.0)], "LIBRARY-11"
    [(restart, seconds)] = history(number, "phalanx/seconds_lost")
    assert restart == 1
    assert 0 < seconds < 60, "LIBRARY-11"
