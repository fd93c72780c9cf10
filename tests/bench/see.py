"""What it costs a driver to be looked at: 1,000 ranks that report ten times a second each, and what is beside them.

    python tests/bench/see.py [--quick]

The driver is a process of its own with a session of Spark's: a real run, whose nodes are simulated in another process
(rust/job/examples/scale.rs). The cases take turns:

    nothing     nobody looks: no display, and no Spark UI
    cell        the run is drawn as in a notebook's cell
    tab         the run has its tab in Spark's UI
    browser     as `tab`, and the run's page is loaded 50 times a second
    reader      a cell, and a reader of the ranks' output who hangs
    output      each rank writes 1 MiB, after its reports

Shares are of one core: processor time over the time that so many reports are of. `driver` is the Python process, of
which `hub` is one thread; `JVM` is Spark's. Other load of the machine doesn't count as theirs. The rows of `output` are
over the time that the output takes, too.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import Quiet, Report, build_example, interleaved

RANKS, NODES = 1000, 125
EVERY_MS = 100
MIB = 1 << 20
RELOADS_PER_S = 50
OUTPUT_BYTES = {"output": MIB}
# What a rank writes for the reader who hangs: together far more than a pipe holds.
READER_BYTES = 64 << 10
CASES = ("nothing", "cell", "tab", "browser", "reader", "output")
METRICS = (
    ("driver_share", "driver", "cores"),
    ("hub_share", "of it the hub", "cores"),
    ("jvm_share", "Spark's JVM", "cores"),
    ("memory_mib", "memory of the driver, at most", "MiB"),
    ("worst_ping_s", "worst ping", "s"),
    ("reports_share", "reports told, of those due", "share"),
    ("written_s", "output, until the driver has it", "s"),
    ("pages", "pages served", "pages/s"),
)


class HungReader:
    """A stdout that takes what a pipe holds, and no more until `read_on`."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def write(self, text: str) -> int:
        os.write(self._write, text.encode())
        return len(text)

    def flush(self) -> None:
        pass

    def read_on(self) -> None:
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        while os.read(self._read, MIB):
            pass


def processor_seconds() -> dict[str, float]:
    """Of this process, of its hub's thread, and of the JVM."""
    ticks = os.sysconf("SC_CLK_TCK")
    hub = 0.0
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == "phalanx-hub":
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            hub = (int(fields[11]) + int(fields[12])) / ticks
    jvms = [process for process in psutil.Process().children(recursive=True) if process.name() == "java"]
    times = [jvm.cpu_times() for jvm in jvms]
    return {
        "driver": time.process_time(),
        "hub": hub,
        "jvm": sum(taken.user + taken.system for taken in times),
    }


@contextmanager
def reloading(url: str | None, loaded: list[int]) -> Iterator[None]:
    """A browser, in a process of its own, that loads a page again and again."""
    if url is None:
        yield
        return
    command = [sys.executable, __file__, "--browser", url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as browser:
        try:
            yield
        finally:
            loaded.append(int(browser.communicate("", timeout=60)[0]))


def browse(url: str) -> None:
    """Loads a page 50 times a second, or as often as it is served, until stdin ends; prints how often."""
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    loaded, due = 0, time.monotonic()
    while not over.wait(max(0.0, due - time.monotonic())):
        due = max(due + 1 / RELOADS_PER_S, time.monotonic())
        with urllib.request.urlopen(url, timeout=30) as page:
            loaded += len(page.read()) > 0
    print(loaded)


def drive(case: str, fleet: str, seconds: float) -> dict[str, float]:
    """A run of simulated nodes, looked at as the case says; in a process of its own."""
    from phalanx import TrainingError, _native, spark_conf
    from phalanx.display.live import LiveDisplay
    from phalanx.display.painters import NotebookPainter
    from phalanx.display.shown import Shown
    from phalanx.display.spark_ui import SparkUi
    from phalanx.request.payload import Payload
    from phalanx.request.preflight import Lease
    from phalanx.request.run_request import RunRequest
    from phalanx.request.settings import Settings
    from phalanx.run.run import Run
    from phalanx.spark.session import driver_dir
    from phalanx.stages.stage import Stage
    from pyspark.sql import SparkSession

    logging.getLogger("phalanx").setLevel(logging.ERROR)
    has_tab = case in ("tab", "browser")
    conf = {
        "spark.master": "local[1]",
        "spark.ui.enabled": str(has_tab).lower(),
        "spark.ui.port": "0",
        "spark.ui.showConsoleProgress": "false",
        **spark_conf(),
    }
    spark = SparkSession.builder.config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    figures: dict[str, float] = {}
    written_bytes = OUTPUT_BYTES.get(case, READER_BYTES if case == "reader" else 0)
    reader = HungReader()
    sys.stdout = reader if case == "reader" else Quiet()  # type: ignore[assignment]

    class Simulated(Stage):
        def _run(self, hub: _native.Hub, attempt: int) -> None:
            spec = hub.node_spec(attempt, python=None, env={}, local_gpus=[])
            command = [fleet, "fleet", str(seconds), str(EVERY_MS), str(written_bytes)]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            with subprocess.Popen(command, text=True, **pipes) as nodes:
                self._play(hub, nodes, spec.decode())

        def _play(self, hub: _native.Hub, nodes: subprocess.Popen[str], spec: str) -> None:
            told: IO[str] = nodes.stdout  # type: ignore[assignment]
            stdin: IO[str] = nodes.stdin  # type: ignore[assignment]
            stdin.write(spec + "\n")
            stdin.flush()
            told.readline()
            loaded: list[int] = []
            run_id = json.loads(hub.snapshot())["run"]
            url = f"{spark.sparkContext.uiWebUrl}/phalanx/run/?id={run_id}" if case == "browser" else None
            before, began = processor_seconds(), time.monotonic()
            with reloading(url, loaded):
                told.readline()
            took = time.monotonic() - began
            after = processor_seconds()
            reader.read_on()
            hub.stop("it is measured")
            figures.update(json.loads(told.readline()))
            figures["seconds"] = took
            figures["pages"] = sum(loaded) / took
            for name, taken in after.items():
                figures[name] = taken - before[name]

    job = _native.Job(name="see", ranks=RANKS, tasks=NODES, use_gpu=False, settings={})
    request = RunRequest(
        job=job,
        payload=Payload(b""),
        settings=Settings({}),
        variables={},
        endpoint=("127.0.0.1", "127.0.0.1"),
        work_dir=driver_dir(spark),
    )
    shown = Shown(job.name, "off")
    run = Run(
        request,
        stage=Simulated(request),
        lease=Lease(spark, RANKS, use_gpu=False, local_mode=True),
        inputs=None,
        observers=[SparkUi(spark), shown],
        face=shown,
    )
    cell = LiveDisplay(NotebookPainter, run.snapshot)
    if case in ("cell", "reader"):
        from IPython.core.interactiveshell import InteractiveShell

        InteractiveShell.instance().display_pub.publish = lambda *_args, **_options: None
        cell.start()
    try:
        run.drive()
    except TrainingError as error:
        if "it is measured" not in str(error):
            raise
    finally:
        cell.stop()
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    figures["memory_mib"] = int(peak.split()[1]) / 1024
    spark.stop()
    return figures


def measured(case: str, fleet: Path, seconds: float) -> dict[str, float]:
    command = [sys.executable, __file__, "--drive", case, str(fleet), str(seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    # Of the time that the reports are of, however long this machine took to tell and to hear them.
    due = seconds * 1000 / EVERY_MS
    reporting = figures["ranks_reported"] * EVERY_MS / 1000
    lasted = reporting + (figures["written_s"] if case in OUTPUT_BYTES else 0.0)
    for name in ("driver", "hub", "jvm"):
        figures[f"{name}_share"] = figures[name] / lasted
    figures["reports_share"] = figures["ranks_reported"] / due
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one repetition, and reports for 5 s")
    parser.add_argument("--drive", nargs=3, metavar=("CASE", "FLEET", "SECONDS"), help=argparse.SUPPRESS)
    parser.add_argument("--browser", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if options.browser:
        browse(options.browser)
        return
    if options.drive:
        figures = drive(options.drive[0], options.drive[1], float(options.drive[2]))
        print(json.dumps(figures), file=sys.__stdout__, flush=True)
        return
    seconds = 5.0 if options.quick else 20.0
    fleet = build_example("phalanx-job", "scale")
    report = Report("see")
    runs = {case: lambda case=case: measured(case, fleet, seconds) for case in CASES}
    taken = interleaved(runs, 1 if options.quick else 5)
    for key, metric, unit in METRICS:
        for case, rows in taken.items():
            report.add("phalanx", case, metric, unit, [row[key] for row in rows])


if __name__ == "__main__":
    main()
