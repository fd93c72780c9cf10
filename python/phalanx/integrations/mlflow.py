"""The caller's MLflow run: what ranks need to continue it, and what becomes of it with the training.

LIBRARY-5 (only-if-used): mlflow is never imported for its own sake, but found where the caller has imported it.
LIBRARY-6 (no-stall): what is sent to MLflow's server waits in a bounded queue of a thread. A server that is slow or
gone holds up no training and fails none; the end of a run waits for it for `LAST_S` at most.
LIBRARY-10 (each-report): a report is logged at its own step and time, each and in order. How many could not be is a
tag, and a warning.
LIBRARY-11 (what-restarts-cost): once all ranks run again, their number and what is lost are metrics of the run, at the
number of the restart in the place of a step.
LIBRARY-7 (says-how-it-ended): a run that failed is FAILED, one that was cancelled or interrupted is KILLED, each with
the cause as a tag, which goes before all reports that wait. One that ended well goes on, though rank 0 has ended it at
its own end.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ..errors import TrainingError
from ..rank import contract, tracking
from ..run.observer import Observer, Restart
from .report_queue import Report, ReportQueue

logger = logging.getLogger("phalanx")

LAST_S = 10.0
# Reports that wait for the server.
_MOST_WAITING = 10_000
_TAG_LEFT_OUT = "phalanx.reports_left_out"
# What MLflow takes in one call, as a tag, and as a metric's name (mlflow/utils/validation.py).
_MOST_METRICS = 1000
_MOST_TAG_CHARS = 5000
_MOST_NAME_CHARS = 250
# The largest step and time that MLflow takes, which refuses all of a call for a larger one.
_MOST_INTEGER = 2**63 - 1
_NOT_IN_NAMES = re.compile(r"[^/\w.\- :]")

# What of the caller's environment is about MLflow, and reaches the ranks with its run.
_CARRIED = (
    "MLFLOW_TRACKING_URI",
    "MLFLOW_REGISTRY_URI",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_AUTH",
    "MLFLOW_TRACKING_INSECURE_TLS",
    "MLFLOW_ALLOW_FILE_STORE",
    "MLFLOW_EXPERIMENT_ID",
    "MLFLOW_EXPERIMENT_NAME",
    "MLFLOW_RUN_ID",
    "DATABRICKS_HOST",
    "DATABRICKS_TOKEN",
    "DATABRICKS_CLIENT_ID",
    "DATABRICKS_CLIENT_SECRET",
)


def callers_run(
    wanted: bool | str | None, *, local_mode: bool, given: Collection[str] = ()
) -> tuple[dict[str, str], TrackedRun | None]:
    """The variables by which ranks continue what the caller has of MLflow, and the caller's active run, if there is
    one. To be called in the caller's thread.

    `wanted` is None for these, False for nothing, True to have `phalanx.report` of rank 0 logged as well, "all" to have
    all ranks continue the run, and report. `given` are the variables that the caller gives the ranks itself.

    Raises `ValueError` for another value, `RuntimeError` where reports have no active run to go to.
    """
    if wanted not in (None, True, False, "all"):
        raise ValueError(f"mlflow has to be True, False, 'all' or None, not {wanted!r}")
    if wanted is False:
        return {}, None
    # Whoever imports it in another thread at this moment has no run yet.
    mlflow = sys.modules.get("mlflow")
    mlflow = mlflow if hasattr(mlflow, "active_run") else None
    active = mlflow.active_run() if mlflow is not None else None
    if wanted and active is None:
        raise RuntimeError(
            f"mlflow={wanted!r} logs to the active MLflow run, and there is none; run the distributor within "
            "`with mlflow.start_run():`"
        )
    variables = {name: os.environ[name] for name in _CARRIED if name in os.environ}
    # What MLflow takes where nobody has said anything is a file here, and no reason to overrule the executors' own.
    if mlflow is not None and (local_mode or active is not None or mlflow.is_tracking_uri_set()):
        variables |= _context(mlflow, active)
    if not {"MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID"} & variables.keys():
        return {}, None
    if "MLFLOW_EXPERIMENT_ID" in variables:
        variables.pop("MLFLOW_EXPERIMENT_NAME", None)  # it may be another's, which libraries would then set
    uri, named = variables.get("MLFLOW_TRACKING_URI", ""), "MLFLOW_TRACKING_URI" in given
    if named and active is None:  # the ranks go where they are sent, all of them
        variables = {name: value for name, value in variables.items() if name not in tracking.OF_THE_RUN}
    else:
        variables[contract.ENV_MLFLOW] = tracking.ALL if wanted == "all" else tracking.FIRST
    if uri and not (local_mode or named) and _for_others(uri).startswith(("file:", "sqlite:")):
        logger.warning(
            f"MLflow's tracking URI {uri} is a file of this host: what ranks log on other hosts is not seen here"
        )
    if mlflow is None or active is None:
        return variables, None
    return variables, TrackedRun(mlflow, active.info.run_id, reports=bool(wanted), every_rank=wanted == "all")


def _context(mlflow: Any, active: Any) -> dict[str, str]:
    """What the caller has set by mlflow's functions."""
    uri, registry = mlflow.get_tracking_uri(), mlflow.get_registry_uri()
    found = {}
    for name, value in (("MLFLOW_TRACKING_URI", uri), ("MLFLOW_REGISTRY_URI", registry)):
        if value:
            found[name] = _for_others(value)
    databricks = next((value for value in (uri, registry) if str(value).startswith("databricks")), None)
    if databricks:
        found |= _databricks(databricks.replace("databricks-uc", "databricks", 1))
    if active is not None:
        found |= {"MLFLOW_RUN_ID": active.info.run_id, "MLFLOW_EXPERIMENT_ID": active.info.experiment_id}
    return found


def _for_others(uri: str) -> str:
    """A URI for processes elsewhere: a file's is absolute; a profile of Databricks stays here, with its credentials."""
    if uri.startswith("databricks"):
        return uri.partition("://")[0]
    scheme, colon, path = uri.partition(":")
    if scheme == "sqlite" and path.startswith("///") and not path.startswith("////"):
        return f"sqlite:///{os.path.abspath(path[3:])}"
    if colon and scheme != "file":
        return uri
    path = path if colon else uri
    return "file://" + os.path.abspath(path[2:] if path.startswith("//") else path)


def _databricks(uri: str) -> dict[str, str]:
    """Host and token: the environment's, or what Databricks' own rules find (a notebook's context, a profile)."""
    if "://" not in uri and {"DATABRICKS_HOST", "DATABRICKS_TOKEN"} <= os.environ.keys():
        return {}
    try:
        # The caller has mlflow, and mlflow knows where it has its own credentials from.
        utils = importlib.import_module("mlflow.utils.databricks_utils")
        found = utils.get_databricks_host_creds(uri)
        token = found.token or _bearer(uri)
        return {"DATABRICKS_HOST": found.host, "DATABRICKS_TOKEN": token} if found.host and token else {}
    except Exception as problem:  # its text may hold what it shouldn't
        logger.warning(
            f"MLflow's Databricks credentials can't be found for the ranks ({type(problem).__name__}); "
            "set DATABRICKS_HOST and DATABRICKS_TOKEN"
        )
        return {}


def _bearer(uri: str) -> str:
    """The token of whatever sign-in Databricks' SDK has used."""
    from databricks.sdk.core import Config  # type: ignore[import-not-found,unused-ignore]

    headers = Config(profile=uri.partition("://")[2] or None).authenticate()
    return str(headers.get("Authorization", "")).removeprefix("Bearer ")


def _end() -> None:
    """What ends the thread, in the place of something to do."""


class TrackedRun(Observer):
    """The caller's active MLflow run, during a training and at its end."""

    def __init__(self, mlflow: Any, run_id: str, *, reports: bool, every_rank: bool) -> None:
        self._mlflow = mlflow
        self._client = mlflow.MlflowClient(tracking_uri=mlflow.get_tracking_uri())
        self.run_id = run_id
        self._reports, self._every_rank = reports, every_rank
        self._waiting = ReportQueue(_MOST_WAITING, _MOST_METRICS)
        self._thread: threading.Thread | None = None
        self._complained = False
        self._renamed: set[str] = set()
        self._is_settled = False
        self._is_marked = False
        """Whether MLflow has taken that, and why, the run failed."""
        self._unreachable = False

    @property
    def settings(self) -> dict[str, str]:
        """What the run's job is told beside its settings: of which ranks every report is wanted."""
        return {"phalanx.everyReport": "all" if self._every_rank else "first"} if self._reports else {}

    def every_report(self, rank: int, reports: Sequence[dict[str, Any]], left_out: int) -> None:
        """Each `phalanx.report` of a rank is a step's metrics. Returns at once."""
        if self._reports and (rank == 0 or self._every_rank):
            self._waiting.put(rank, reports, left_out)
            self._work()

    def restarted(self, restart: Restart) -> None:
        """What a restart has cost is a metric. Returns at once."""
        lost = {"seconds": restart.seconds, "steps": restart.steps}
        values = {f"phalanx/{name}_lost": number for name, number in lost.items() if number is not None}
        values["phalanx/world_size"] = restart.ranks
        self._waiting.put(
            0, [{"step": restart.attempt, "at_ms": int(time.time() * 1000), "values": values}], 0
        )
        self._work()

    def over(self, error: BaseException | None) -> None:
        """The training is over: everything is logged, and a failure with its cause. Waits for `LAST_S` at most."""
        if error is not None:
            self._then(lambda: self._mark(error), first=True)
        if self._thread is not None:
            self._then(self._tell_left_out)
        self._finish()

    def settled(self, error: BaseException | None) -> None:
        """To be called where the outcome is returned or raised: if the run is active in this thread, it goes on, or has
        been killed."""
        active = self._mlflow.active_run()
        if self._is_settled or active is None or active.info.run_id != self.run_id:
            return
        if self._unreachable and not self._is_marked:
            return
        self._is_settled = True
        if error is None:
            self._then(lambda: self._client.update_run(self.run_id, status="RUNNING"))
            self._finish()
        elif _is_kill(error):
            # Otherwise `with mlflow.start_run()` would mark it FAILED.
            with contextlib.suppress(Exception):
                self._mlflow.end_run("KILLED")

    def _mark(self, error: BaseException) -> None:
        entities = importlib.import_module("mlflow.entities")
        kind = error.kind if isinstance(error, TrainingError) else type(error).__name__
        cause = error.message if isinstance(error, TrainingError) else str(error)
        tags = [
            entities.RunTag("phalanx.failure", kind),
            entities.RunTag("phalanx.cause", cause[:_MOST_TAG_CHARS] or kind),
        ]
        self._client.log_batch(self.run_id, tags=tags, synchronous=True)
        self._client.set_terminated(self.run_id, "KILLED" if _is_kill(error) else "FAILED")
        self._is_marked = True

    def _tell_left_out(self) -> None:
        left_out = self._waiting.left_out
        if left_out == 0:
            return
        logger.warning(
            f"the MLflow run {self.run_id} lacks {left_out} reports, which came faster than they could be sent or taken"
        )
        entities = importlib.import_module("mlflow.entities")
        tag = entities.RunTag(_TAG_LEFT_OUT, str(left_out))
        self._client.log_batch(self.run_id, tags=[tag], synchronous=True)

    def _then(self, call: Callable[[], object], *, first: bool = False) -> None:
        """Has this done after all that waits, or before all reports that do."""
        self._waiting.then(call, first=first)
        self._work()

    def _work(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._main, name="phalanx-mlflow", daemon=True)
            self._thread.start()

    def _finish(self) -> None:
        """Waits until all that waits has been sent."""
        if self._thread is None or self._unreachable:
            return
        self._then(_end)
        self._thread.join(LAST_S)
        if self._thread.is_alive():
            self._unreachable = True
            self._warn(f"has not taken everything within {LAST_S:g} s ({self._waiting.waiting} reports wait)")

    def _main(self) -> None:
        while (item := self._waiting.take()) is not _end:
            try:
                if callable(item):
                    item()
                else:
                    self._log(item)
            except Exception as problem:
                if not callable(item):
                    self._waiting.lost(len(item))
                self._complain(f"has not taken what was logged: {type(problem).__name__}: {problem}")

    def _log(self, reports: list[Report]) -> None:
        entities = importlib.import_module("mlflow.entities")
        metrics = []
        for rank, report in reports:
            before = "" if rank == 0 else f"rank_{rank}/"
            for name, value in report["values"].items():
                with contextlib.suppress(ValueError, TypeError):  # words are no metric
                    number = float(value)
                    name = self._as_metric(before + name)
                    at_ms, step = min(report["at_ms"], _MOST_INTEGER), min(report["step"], _MOST_INTEGER)
                    metrics.append(entities.Metric(name, number, at_ms, step))
        if metrics:
            # Else it may wait in a queue of MLflow's own (MLFLOW_ENABLE_ASYNC_LOGGING).
            self._client.log_batch(self.run_id, metrics=metrics, synchronous=True)

    def _as_metric(self, name: str) -> str:
        """What a report's value is called at MLflow, which refuses all of a call for one name. Says so once."""
        taken = _metric_name(name)
        if taken != name and name not in self._renamed:
            self._renamed.add(name)
            logger.warning(
                f"MLflow takes no metric called {name!r}; the run {self.run_id} has it as {taken!r}"
            )
        return taken

    def _complain(self, what: str) -> None:
        if not self._complained:
            self._complained = True
            self._warn(what)

    def _warn(self, what: str) -> None:
        logger.warning(f"MLflow's server {what}; the run {self.run_id} lacks some of it")


def _metric_name(name: str) -> str:
    """The nearest name that MLflow takes: of few characters, and a path without detours."""
    parts = [part for part in _NOT_IN_NAMES.sub("_", name).split("/") if part.strip(".")]
    path = "/".join(parts)[:_MOST_NAME_CHARS].rstrip("/")
    return "_" + path[1:] if path.startswith("..") or not path else path


def _is_kill(error: BaseException) -> bool:
    return isinstance(error, KeyboardInterrupt) or getattr(error, "kind", "") == "cancelled"
