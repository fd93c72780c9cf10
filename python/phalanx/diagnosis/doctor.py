"""`phalanx.doctor`: an empty gang that finds out, host by host, what would go wrong with a run.

DOCTOR-1 (never-raises): what prevents a run is a finding, and no exception.
DOCTOR-2 (in-time): it is over within its time, but for the seconds that Spark takes to end what was cancelled.
DOCTOR-3 (as-a-run): what a run checks before it starts is asked by the same functions; where all is well a run is made.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..connect.client import is_remote
from ..connect.relay import has_plugin
from ..request import preflight
from ..request.settings import Settings
from ..request.slots import task_slots
from ..spark.driver_jvm import barrier_runner, why_not
from ..spark.jar import PLUGIN
from ..spark.session import SessionConf
from ..stages.idle_workers import idle_limit
from .cluster_checks import rates
from .coming_and_going import cooling_findings, gang_finding, leaving_findings, seats_finding
from .executors import executors
from .finding import Finding, Need
from .findings import judged, lost_executors, one_of_each_host
from .gang import try_a_run
from .report import Report
from .stage import Seen, look_at_hosts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How the time is divided: until slots are there, until the hosts are looked at; the run has what is left.
_SLOTS_SHARE = 0.25
_LOOK_SHARE = 0.65
# A run that has less is not begun: a rank's import of torch alone takes seconds.
_LEAST_RUN_S = 8.0
_ENCRYPTION = {
    "auto": "what ranks send to other hosts is encrypted where Spark's own RPC is",
    "required": "what ranks send to other hosts is encrypted",
    "off": "what ranks send to other hosts is not encrypted",
}
_SIZES = {"": 20, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def doctor(
    spark: SparkSession | None = None,
    num_processes: int = 8,
    use_gpu: bool = True,
    *,
    timeout: float = 60.0,
) -> Report:
    """Looks at the cluster as a distributed run of so many ranks would, and says what would go wrong, host by host.

    A task on each host looks at names, ports in both directions, the network interface and its MTU, the clock,
    versions, GPUs, memory, `/dev/shm`, disks, limits, and at what the guard needs of the kernel; the tasks measure the
    bandwidth between them. Where none of that is an error, a run with nothing to train reduces a few MiB.

    `spark` is the session, by default the active one or else a new one. Nothing takes longer than `timeout` seconds in
    all. Print the report, or leave it as the last value of a notebook's cell; `report.ok` says whether a run may start.

    >>> report = phalanx.doctor(spark, num_processes=16, use_gpu=False)
    >>> print(report)

    Raises `TypeError` and `ValueError` for a number of processes or a time-out that is none.
    """
    began = time.monotonic()
    num_processes = preflight.check_num_processes(num_processes)
    if not timeout > 0:
        raise ValueError(f"timeout has to be a positive number of seconds, not {timeout!r}")
    if spark is None:
        from pyspark.sql import SparkSession

        spark = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    examination = _Examination(spark, num_processes, use_gpu, began + timeout)
    examination.look()
    facts = examination.seen.facts
    hosts = one_of_each_host(facts)
    return Report(
        findings=examination.findings,
        hosts=[host["host"] for host in hosts],
        links=rates(hosts),
        facts=facts,
        seconds=time.monotonic() - began,
    )


class _Examination:
    def __init__(self, spark: Any, processes: int, use_gpu: bool, until: float) -> None:
        self._spark = spark
        self._processes = processes
        self._use_gpu = use_gpu
        self._until = until
        self._tasks = processes
        self._barrier = True
        self._settings: Settings | None = None
        self.findings: list[Finding] = []
        self.seen = Seen(0)

    def look(self) -> None:
        total = self._left()
        before = {one.number for one in executors(self._spark) if not one.active}
        self._read_settings()
        self._ask_gpus()
        self._ask_start()
        self._ask_stage()
        there = self._ask_slots(total * _SLOTS_SHARE)
        if there:
            self._look_at_hosts(there, max(1.0, self._left() - total * (1 - _LOOK_SHARE)))
        self.findings += lost_executors(executors(self._spark), before)
        self.findings += [*leaving_findings(self._spark, executors(self._spark)), *cooling_findings()]
        if all(finding.level != "error" for finding in self.findings):
            self._try_a_run()

    def _read_settings(self) -> None:
        with self._refusals("settings", "Correct the setting; docs/configuration.md has all of them."):
            with _warnings("phalanx") as said:
                conf = SessionConf(self._spark)
                self._settings = Settings.read(conf.get, keys=conf.keys)
            self.findings += [Finding("warning", "driver", "settings", text) for text in said]

    def _ask_gpus(self) -> None:
        with self._refusals(
            "GPUs", "Set what it names, or ask for a run without GPUs: use_gpu=False, --no-gpu."
        ):
            _, self._tasks = preflight.plan(
                self._processes,
                local_mode=False,
                use_gpu=self._use_gpu,
                conf_get=self._conf,
                resources=dict,
                logger=logging.getLogger("phalanx"),
            )

    def _ask_start(self) -> None:
        with self._refusals("settings", ""), _warnings("phalanx") as said:
            try:
                preflight.check_start(self._conf, logging.getLogger("phalanx"))
                # Without a barrier the hosts are looked at by an ordinary stage, whose tasks can't meet.
                self._barrier = self._settings is None or self._settings.gang == "barrier"
                wish = self._value("spark.phalanx.gang", "auto")
                gang = "barrier" if self._barrier else "tasks"
                self.findings.append(gang_finding(gang, wish, dynamic=self._is_dynamic()))
            except RuntimeError as problem:
                self._barrier = False
                do = "Set what it names, when the application starts."
                self.findings.append(Finding("error", "driver", "gang", str(problem), do))
        self.findings += [Finding("warning", "driver", "TLS", text) for text in said]
        if not said:
            wish = self._value("spark.phalanx.encryption", "auto")
            self.findings.append(
                Finding(
                    "ok",
                    "",
                    "TLS",
                    f"spark.phalanx.encryption is {wish}: {_ENCRYPTION.get(wish, wish)}.",
                )
            )

    def _ask_stage(self) -> None:
        problem = why_not(self._spark)
        if problem is None:
            self.findings.append(
                Finding("ok", "", "stage", "The jar is there: executors' JVMs start the ranks.")
            )
        else:
            with_jar = not is_remote(self._spark) and barrier_runner(self._spark.sparkContext) is not None
            wanted = self._settings is not None and self._settings.stage == "jvm"
            self.findings.append(
                Finding(
                    "error" if wanted else "warning" if with_jar else "ok",
                    "driver",
                    "stage",
                    f"Spark's Python workers start the ranks: {problem}.",
                )
            )
            if limit := idle_limit(self._conf, of_dataframe=is_remote(self._spark)):
                self.findings.append(Finding("warning", "driver", "idle workers", *limit))

    def _ask_slots(self, seconds: float) -> int:
        """How many tasks there can be at the same time, up to those that the run needs."""
        if not self._barrier and self._is_dynamic():  # Spark starts executors for tasks that wait
            slots = None
            with contextlib.suppress(Exception):  # a client of Spark Connect has none to count
                slots = task_slots(self._spark.sparkContext)
            most = self._conf("spark.dynamicAllocation.maxExecutors")
            self.findings.append(seats_finding(self._tasks, slots, most))
            return self._tasks
        wanted = self._settings.slots_timeout if self._settings is not None else seconds
        do = "Ask for fewer processes, or give the application more cores: spark.cores.max, spark.executor.instances."
        with self._refusals("slots", do):
            preflight.check_slots(
                self._spark, self._tasks, min(wanted, round(seconds)), logging.getLogger("phalanx")
            )
            self.findings.append(
                Finding("ok", "", "slots", f"There are slots for {self._tasks} tasks at the same time.")
            )
            return self._tasks
        return next((tasks for tasks in range(self._tasks - 1, 0, -1) if self._fits(tasks)), 0)

    def _fits(self, tasks: int) -> bool:
        try:
            preflight.check_slots(self._spark, tasks, 0, logging.getLogger("phalanx"))
            return True
        except RuntimeError:
            return False

    def _look_at_hosts(self, tasks: int, seconds: float) -> None:
        do = "Set spark.driver.host and spark.driver.bindAddress to this host's, and spark.phalanx.hub.port to 0."
        with self._refusals("driver", do):
            began = time.monotonic()
            self.seen = self._seen(tasks, seconds, barrier=self._barrier)
            if not self.seen.started and self._barrier:
                # Executors that come and go, or another job's tasks, keep a barrier stage waiting for good. Tasks that
                # needn't run at the same time find out about the hosts that are in order.
                self.findings += judged(self.seen, self._need())
                self.seen = self._seen(tasks, seconds - (time.monotonic() - began), barrier=False)
            self.findings += judged(
                self.seen, self._need(), {one.host for one in executors(self._spark) if one.active}
            )

    def _seen(self, tasks: int, seconds: float, *, barrier: bool) -> Seen:
        return look_at_hosts(
            self._spark,
            tasks,
            seconds,
            barrier=barrier,
            ports=(self._port("spark.phalanx.hub.port"), self._port("spark.phalanx.store.port")),
            use_gpu=self._use_gpu,
            notice_command=self._value("spark.phalanx.notice.command", ""),
        )

    def _try_a_run(self) -> None:
        seconds = self._left() - 1
        if seconds < _LEAST_RUN_S:
            self.findings.append(
                Finding(
                    "warning",
                    "",
                    "all-reduce",
                    f"It was not tried: only {max(0.0, seconds):.0f} s were left.",
                    "Give more time: phalanx doctor --timeout 120.",
                )
            )
            return
        with self._refusals("all-reduce", ""):
            self.findings += try_a_run(self._spark, self._processes, use_gpu=self._use_gpu, seconds=seconds)

    def _need(self) -> Need:
        stage = "auto" if self._settings is None else self._settings.stage
        in_jvm = stage != "python" and why_not(self._spark) is None
        return Need(
            processes=self._processes,
            use_gpu=self._use_gpu,
            jvm=in_jvm,
            connect=is_remote(self._spark),
            other_way=self._has_other_way(),
            heap=self._heap(),
            overhead=self._overhead(),
            executor_ranks=self._executor_ranks(),
        )

    def _has_other_way(self) -> bool:
        if is_remote(self._spark):
            connect = "auto" if self._settings is None else self._settings.connect
            return connect != "direct" and has_plugin(self._spark)
        return PLUGIN in (self._conf("spark.plugins") or "")

    def _heap(self) -> int:
        return _bytes(self._conf("spark.executor.memory") or "1g")

    def _overhead(self) -> int | None:
        """What Spark asks the cluster manager for beside the heap; None where nobody keeps executors to it."""
        if not (self._conf("spark.master") or "").startswith(("yarn", "k8s")):
            return None
        for_python = _bytes(self._conf("spark.executor.pyspark.memory") or "0")
        if said := self._conf("spark.executor.memoryOverhead"):
            return _bytes(said) + for_python
        factor = float(self._conf("spark.executor.memoryOverheadFactor") or 0.1)
        return max(384 << 20, int(self._heap() * factor)) + for_python

    def _executor_ranks(self) -> int:
        """How many ranks an executor has room for."""
        tasks = int(self._conf("spark.executor.cores") or 1) // max(
            1, int(self._conf("spark.task.cpus") or 1)
        )
        return max(1, tasks) * max(1, self._processes // max(1, self._tasks))

    def _port(self, key: str) -> int:
        value = self._value(key, "0")
        return int(value) if value.isdigit() else 0

    def _is_dynamic(self) -> bool:
        return self._conf("spark.dynamicAllocation.enabled") == "true"

    def _value(self, key: str, default: str) -> str:
        return (self._settings.values if self._settings else {}).get(key, default)

    def _conf(self, key: str) -> str | None:
        value: str | None = self._spark.conf.get(key, None)
        return value

    def _left(self) -> float:
        return self._until - time.monotonic()

    @contextlib.contextmanager
    def _refusals(self, check: str, do: str) -> Iterator[None]:
        """What is refused in this block is an error of the report."""
        try:
            yield
        except Exception as problem:
            if str(problem) not in [finding.means for finding in self.findings]:
                self.findings.append(Finding("error", "driver", check, str(problem), do))


@contextlib.contextmanager
def _warnings(name: str) -> Iterator[list[str]]:
    """What is warned of meanwhile, in the place of the log."""
    said: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            said.append(record.getMessage())
            return False
        return True

    logger = logging.getLogger(name)
    logger.addFilter(keep)
    try:
        yield said
    finally:
        logger.removeFilter(keep)


def _bytes(text: str) -> int:
    """Spark's size of memory, `2g`; a plain number is MiB."""
    match = re.fullmatch(r"\s*(\d+)\s*([bkmgt]?)i?b?\s*", text.lower())
    return int(match[1]) << _SIZES[match[2]] if match else 0
