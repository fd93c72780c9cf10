"""What ranks are told of the caller's MLflow run, with a stand-in for mlflow."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from phalanx.integrations import mlflow as ours
from phalanx.integrations.mlflow import TrackedRun, callers_run
from phalanx.rank import tracking
from phalanx.run.observer import Restart

pytestmark = pytest.mark.timeout(60)


class Mlflow(ModuleType):
    """Stands for mlflow: an active run, or none, and a client that keeps what it is told."""

    def __init__(self, uri: str, *, registry: str = "", run: str | None = None, is_set: bool = True) -> None:
        super().__init__("mlflow")
        self.told: list[Any] = []
        self.is_tracking_uri_set = lambda: is_set
        self.get_tracking_uri = lambda: uri
        self.get_registry_uri = lambda: registry or uri
        info = SimpleNamespace(run_id=run, experiment_id="7")
        self.active_run = lambda: None if run is None else SimpleNamespace(info=info)
        self.MlflowClient = lambda tracking_uri: self
        self.end_run = lambda status: self.told.append(status)

    def log_batch(self, run_id: str, **entities: Any) -> None:
        self.told.append((run_id, entities))

    def update_run(self, run_id: str, status: str) -> None:
        self.told.append((run_id, status))


@pytest.fixture(autouse=True)
def no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the environment of whoever runs the tests."""
    for name in ours._CARRIED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)


def test_a_caller_that_has_no_mlflow_sends_nothing_and_imports_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATABRICKS_TOKEN", "secret")
    assert callers_run(None, local_mode=True) == ({}, None), "LIBRARY-5"
    assert "mlflow" not in sys.modules, "LIBRARY-5"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking")
    variables, tracked = callers_run(None, local_mode=True)
    assert (variables["DATABRICKS_TOKEN"], variables["MLFLOW_TRACKING_URI"]) == ("secret", "http://tracking")
    assert tracked is None
    assert callers_run(False, local_mode=True) == ({}, None)


def test_reports_without_an_active_run_and_other_values_are_refused_before_anything_starts() -> None:
    with pytest.raises(RuntimeError, match=r"with mlflow\.start_run\(\)"):
        callers_run(True, local_mode=True)
    with pytest.raises(ValueError, match="not 'rank 0'"):
        callers_run("rank 0", local_mode=True)


@pytest.mark.parametrize(
    ("uri", "sent"),
    [
        ("http://tracking:5000", "http://tracking:5000"),
        ("sqlite:///runs.db", "sqlite:///{here}/runs.db"),
        ("sqlite:////data/runs.db", "sqlite:////data/runs.db"),
        ("file:runs", "file://{here}/runs"),
        ("file:///data/runs", "file:///data/runs"),
        ("./runs", "file://{here}/runs"),
    ],
)
def test_what_the_caller_has_set_is_what_ranks_get_and_files_are_absolute(
    uri: str, sent: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "mlflow", Mlflow(uri, registry="http://models", run="r1"))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "another")
    variables, tracked = callers_run(None, local_mode=False)
    assert variables == {
        "MLFLOW_TRACKING_URI": sent.format(here=tmp_path),
        "MLFLOW_REGISTRY_URI": "http://models",
        "MLFLOW_RUN_ID": "r1",
        "MLFLOW_EXPERIMENT_ID": "7",
        "PHALANX_MLFLOW": "first",
    }
    assert tracked is not None
    assert ("is a file of this host" in caplog.text) == (not uri.startswith("http"))


def test_the_file_that_mlflow_takes_where_nobody_set_one_overrules_no_executor(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    default = "sqlite:////here/mlflow.db"
    monkeypatch.setitem(sys.modules, "mlflow", Mlflow(default, is_set=False))
    assert callers_run(None, local_mode=False) == ({}, None)
    variables, _ = callers_run(None, local_mode=True)
    assert variables["MLFLOW_TRACKING_URI"] == default, "ranks on the driver log where the driver does"
    assert caplog.text == ""
    monkeypatch.setitem(sys.modules, "mlflow", Mlflow("sqlite:///runs.db"))
    assert callers_run(None, local_mode=False)[0]["MLFLOW_TRACKING_URI"].endswith("/runs.db")
    assert "is a file of this host" in caplog.text, "without a run, too"


def test_an_experiments_name_does_not_travel_beside_the_id_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", Mlflow("http://t", run="r1"))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "an old one")
    variables, _ = callers_run(None, local_mode=True)
    assert variables["MLFLOW_EXPERIMENT_ID"] == "7"
    assert "MLFLOW_EXPERIMENT_NAME" not in variables
    monkeypatch.delitem(sys.modules, "mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://t")
    assert callers_run(None, local_mode=True)[0]["MLFLOW_EXPERIMENT_NAME"] == "an old one"


def test_a_tracking_uri_that_ranks_are_given_is_theirs_unless_they_continue_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {"MLFLOW_TRACKING_URI": "http://theirs"}
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "3")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    monkeypatch.setitem(sys.modules, "mlflow", Mlflow("http://callers"))
    variables, _ = callers_run(None, local_mode=True, given=given)
    assert variables["MLFLOW_TRACKING_TOKEN"] == "secret"
    assert not {"PHALANX_MLFLOW", "MLFLOW_EXPERIMENT_ID"} & variables.keys()
    env = {**variables, **given, "RANK": "1"}
    tracking.enter("/private", env)
    assert env["MLFLOW_TRACKING_URI"] == "http://theirs"
    monkeypatch.setitem(sys.modules, "mlflow", Mlflow("http://callers", run="r1"))
    variables, _ = callers_run(None, local_mode=True, given=given)
    assert (variables["MLFLOW_RUN_ID"], variables["PHALANX_MLFLOW"]) == ("r1", "first")


@pytest.mark.parametrize(
    ("uri", "registry"),
    [("http://t", "http://t"), ("databricks", "databricks-uc"), ("databricks://p", "databricks-uc://p")],
)
def test_the_registry_is_the_callers_in_every_rank_where_only_the_tracking_uri_is_known(
    uri: str, registry: str
) -> None:
    env = {"MLFLOW_TRACKING_URI": uri, "RANK": "1", "PHALANX_MLFLOW": "first"}
    tracking.enter("/private", env)
    assert env["MLFLOW_TRACKING_URI"] == "file:///private/mlruns"
    assert env["MLFLOW_REGISTRY_URI"] == registry, "RANK-31"


def test_a_notebooks_credentials_for_databricks_reach_the_ranks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(
        sys.modules, "mlflow", Mlflow("databricks://prod", registry="databricks-uc", run="r1")
    )
    utils: Any = ModuleType("mlflow.utils.databricks_utils")
    creds = SimpleNamespace(host="https://dbc", token="context-token")
    utils.get_databricks_host_creds = lambda uri: creds if uri == "databricks://prod" else None
    monkeypatch.setitem(sys.modules, "mlflow.utils.databricks_utils", utils)
    variables, _ = callers_run(None, local_mode=False)
    assert (variables["DATABRICKS_HOST"], variables["DATABRICKS_TOKEN"]) == ("https://dbc", "context-token")
    assert (variables["MLFLOW_TRACKING_URI"], variables["MLFLOW_REGISTRY_URI"]) == (
        "databricks",
        "databricks-uc",
    )

    def fails(uri: str) -> Any:
        raise RuntimeError("the token context-token has expired")

    utils.get_databricks_host_creds = fails
    variables, _ = callers_run(None, local_mode=False)
    assert "DATABRICKS_TOKEN" not in variables
    assert "set DATABRICKS_HOST" in caplog.text
    assert "context-token" not in caplog.text


def test_other_ranks_than_the_first_log_to_a_folder_of_their_own_unless_all_are_to_log() -> None:
    context = {"MLFLOW_TRACKING_URI": "http://t", "MLFLOW_REGISTRY_URI": "http://m", "MLFLOW_RUN_ID": "r1"}
    for whose, rank, own in [("first", "0", False), ("first", "3", True), ("all", "3", False)]:
        env = {**context, "RANK": rank, "PHALANX_MLFLOW": whose}
        tracking.enter("/private", env)
        assert "PHALANX_MLFLOW" not in env
        assert env["MLFLOW_REGISTRY_URI"] == "http://m", "RANK-31"
        assert env["MLFLOW_TRACKING_URI"] == ("file:///private/mlruns" if own else "http://t"), "RANK-31"
        assert ("MLFLOW_RUN_ID" in env) == (not own), "RANK-31"
    untouched = {"RANK": "3", **context}
    tracking.enter("/private", untouched)
    assert untouched == {"RANK": "3", **context}


def report_of(step: int, **values: Any) -> dict[str, Any]:
    return {"step": step, "at_ms": 1000 + step, "values": values}


def test_a_server_that_never_answers_holds_up_neither_reports_nor_for_long_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forever = threading.Event()
    monkeypatch.setattr(ours, "LAST_S", 0.2)
    monkeypatch.setattr(ours, "_MOST_WAITING", 50)
    mlflow = Mlflow("http://t", run="r1")
    monkeypatch.setattr(mlflow, "log_batch", lambda *_, **__: forever.wait())
    entities: Any = ModuleType("mlflow.entities")
    entities.Metric = entities.RunTag = lambda *fields: fields
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    tracked = TrackedRun(mlflow, "r1", reports=True, every_rank=False)
    try:
        for step in range(200):
            tracked.every_report(0, [report_of(step, loss=1.0)], 0)
        began = time.monotonic()
        tracked.over(RuntimeError("no cause"))
        tracked.settled(None)
        assert time.monotonic() - began < 2, "LIBRARY-6"
        assert "MLflow's server" in caplog.text
    finally:
        forever.set()
        assert tracked._thread is not None
        tracked._thread.join(30)


def test_a_slow_server_is_told_how_the_run_ended_before_the_reports_that_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entities: Any = ModuleType("mlflow.entities")
    entities.Metric = lambda name, value, at_ms, step: step
    entities.RunTag = lambda name, value: (name, value)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    mlflow, begun, goes_on, hangs = Mlflow("http://t", run="r1"), *(threading.Event() for _ in range(3))

    def log_batch(run_id: str, **given: Any) -> None:
        mlflow.told.append(given)
        if not begun.is_set():
            begun.set()
            assert goes_on.wait(30)
            raise OSError("an early hiccup")
        if "metrics" in given:
            hangs.wait(30)

    monkeypatch.setattr(mlflow, "log_batch", log_batch)
    mlflow.set_terminated = lambda run_id, status: mlflow.told.append(status)  # type: ignore[attr-defined]
    tracked = TrackedRun(mlflow, "r1", reports=True, every_rank=False)
    try:
        tracked.every_report(0, [report_of(0, loss=1.0)], 0)
        assert begun.wait(30)
        tracked.every_report(0, [report_of(step, loss=1.0) for step in range(1, 3000)], 0)
        monkeypatch.setattr(ours, "LAST_S", 1.0)
        goes_on.set()
        error = KeyboardInterrupt()
        tracked.over(error)
        tracked.settled(error)
        tags = [("phalanx.failure", "KeyboardInterrupt"), ("phalanx.cause", "KeyboardInterrupt")]
        assert mlflow.told[1:3] == [{"tags": tags, "synchronous": True}, "KILLED"], "LIBRARY-7"
        assert mlflow.told[-1] == "KILLED", "LIBRARY-7: the run is over in this thread, too"
        assert len(mlflow.told) == 5
        assert "an early hiccup" in caplog.text
        assert "has not taken everything within 1 s (1999 reports wait)" in caplog.text, "LIBRARY-10"
    finally:
        hangs.set()
        goes_on.set()
        assert tracked._thread is not None
        tracked._thread.join(30)


def test_a_step_or_time_that_mlflow_can_not_have_loses_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = Mlflow("http://t", run="r1")
    entities: Any = ModuleType("mlflow.entities")
    entities.Metric = lambda name, value, at_ms, step: (at_ms, step)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    tracked = TrackedRun(mlflow, "r1", reports=True, every_rank=False)
    tracked.every_report(0, [{"step": 2**64 - 1, "at_ms": 2**64 - 1, "values": {"loss": 1.0}}], 0)
    tracked.over(None)
    most = 2**63 - 1
    assert mlflow.told == [("r1", {"metrics": [(most, most)], "synchronous": True})], "LIBRARY-10"


def test_what_a_restart_has_cost_is_a_metric_at_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = Mlflow("http://t", run="r1")
    entities: Any = ModuleType("mlflow.entities")
    entities.Metric = lambda name, value, at_ms, step: (name, value, step)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    tracked = TrackedRun(mlflow, "r1", reports=False, every_rank=False)
    tracked.restarted(Restart(attempt=2, kind="resized", ranks=3, seconds=2.5, steps=None))
    tracked.restarted(Restart(attempt=3, kind="replaced", ranks=3, seconds=1.5, steps=7))
    tracked.over(None)
    sent = [metric for _, told in mlflow.told for metric in told["metrics"]]
    assert sorted(sent) == [
        ("phalanx/seconds_lost", 1.5, 3),
        ("phalanx/seconds_lost", 2.5, 2),
        ("phalanx/steps_lost", 7.0, 3),
        ("phalanx/world_size", 3.0, 2),
        ("phalanx/world_size", 3.0, 3),
    ], "LIBRARY-11"


def test_reports_are_sent_in_few_calls_and_ranks_have_names_of_their_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mlflow = Mlflow("http://t", run="r1")
    entities: Any = ModuleType("mlflow.entities")
    entities.Metric = lambda name, value, at_ms, step: (name, value, at_ms, step)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    tracked = TrackedRun(mlflow, "r1", reports=True, every_rank=True)
    monkeypatch.setattr(tracked, "_work", lambda: None)
    for rank in range(3):
        tracked.every_report(rank, [report_of(5, loss=0.5, **{"note!": "words", "bad": "nan"})], 0)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    tracked._work()
    tracked.over(None)
    tracked.settled(None)
    [(run, sent), restored] = mlflow.told
    assert sent["metrics"][0] == ("loss", 0.5, 1005, 5), "LIBRARY-10"
    names = [name for name, *_ in sent["metrics"]]
    assert (run, names) == (
        "r1",
        ["loss", "bad", "rank_1/loss", "rank_1/bad", "rank_2/loss", "rank_2/bad"],
    )
    assert restored == ("r1", "RUNNING"), "LIBRARY-7"
    assert not caplog.records, "what isn't logged has no other name"


def test_reports_that_no_one_takes_in_time_are_left_out_oldest_first_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ours, "_MOST_WAITING", 50)
    mlflow, begun, goes_on = Mlflow("http://t", run="r1"), threading.Event(), threading.Event()
    entities: Any = ModuleType("mlflow.entities")
    entities.Metric = lambda name, value, at_ms, step: step
    entities.RunTag = lambda name, value: (name, value)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    refuses = True

    def log_batch(run_id: str, **given: Any) -> None:
        nonlocal refuses
        begun.set()
        assert goes_on.wait(30)
        if refuses:
            refuses = False
            raise OSError("the server starts again")
        mlflow.told.append(given)

    monkeypatch.setattr(mlflow, "log_batch", log_batch)
    tracked = TrackedRun(mlflow, "r1", reports=True, every_rank=False)
    tracked.every_report(0, [report_of(0, loss=1.0)], 0)
    assert begun.wait(30)
    tracked.every_report(1, [report_of(0, loss=1.0)], 0)
    tracked.every_report(0, [report_of(step, loss=1.0) for step in range(1, 201)], 7)
    goes_on.set()
    tracked.over(None)
    steps = [step for given in mlflow.told for step in given.get("metrics", ())]
    assert steps == list(range(151, 201)), "LIBRARY-9"
    # One that the server refused, 7 that never came, 150 that had no room.
    left_out = {"tags": [("phalanx.reports_left_out", "158")], "synchronous": True}
    assert mlflow.told[-1] == left_out, "LIBRARY-10"
    assert "the MLflow run r1 lacks 158 reports" in caplog.text, "LIBRARY-10"


def test_a_run_says_of_which_ranks_every_report_is_wanted() -> None:
    for reports, every_rank, settings in [
        (False, False, {}),
        (True, False, {"phalanx.everyReport": "first"}),
        (True, True, {"phalanx.everyReport": "all"}),
    ]:
        tracked = TrackedRun(Mlflow("http://t"), "r1", reports=reports, every_rank=every_rank)
        assert tracked.settings == settings


def test_a_name_that_mlflow_refuses_is_changed_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    tracked = TrackedRun(Mlflow("http://t", run="r1"), "r1", reports=True, every_rank=False)
    for name, taken in [
        ("val/top 5: acc-1.0_ü", "val/top 5: acc-1.0_ü"),
        ("acc@1", "acc_1"),
        ("/loss//of/./a/../b/", "loss/of/a/b"),
        ("..loss", "_.loss"),
        ("", "_"),
        ("x" * 300, "x" * 250),
    ]:
        for _ in range(2):
            assert tracked._as_metric(name) == taken
    assert len(caplog.records) == 5
    assert "MLflow takes no metric called 'acc@1'; the run r1 has it as 'acc_1'" in caplog.text
