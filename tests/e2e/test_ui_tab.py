"""The tab of Spark's UI, in the driver of a Python program: real runs over both stages, one that fails, pages by HTTP;
and what a history server shows of it once the program is gone.

Where Prometheus is installed, it scrapes the metrics and answers what the dashboard asks.

With PHALANX_PICTURES=FOLDER the pictures of the pages, which need Chromium, are left there; those in docs/ are from it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import phalanx
import pytest
from support import browser, history
from support.own_session import in_session
from support.places import ROOT
from support.programs import ONE_EXECUTOR, WARM_IF_ASKED
from support.tiers import whole

pytestmark = pytest.mark.timeout(300)

DASHBOARD = ROOT / "docs" / "grafana" / "phalanx.json"
METRICS = "spark.metrics.conf.driver.sink.prometheusServlet"
UI = {"spark.ui.enabled": "true", "spark.ui.port": "0", "spark.ui.showConsoleProgress": "false"}
UI |= {
    f"{METRICS}.class": "org.apache.spark.metrics.sink.PrometheusServlet",
    f"{METRICS}.path": "/metrics/prometheus",
    "spark.metrics.namespace": "phalanx",
}

PROGRAM = """
import json, sys, time, urllib.request
from pathlib import Path
from phalanx import TorchDistributor, TrainingError
from support import browser

sys.path.append({here!r})
import test_ui_tab as own

root = spark.sparkContext.uiWebUrl
answer = {{"application": spark.sparkContext.applicationId}}

def page(path):
    return urllib.request.urlopen(root + path, timeout=30).read().decode()

def wait_for(name, state):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for run in json.loads(page("/phalanx/json"))["runs"]:
            snapshot = run["snapshot"]
            if snapshot and (snapshot["name"], snapshot["state"]) == (name, state):
                return run
        time.sleep(0.05)
    raise AssertionError(f"{{name}} is not {{state}}")

def picture(path, name):
    if browser.CHROMIUM is None:
        return None
    return browser.picture(root + path, Path({pictures!r}) / f"{{name}}.png")

def jvm_run(gate):
    import os, time, phalanx
    phalanx.report(step=3, of=40, loss=0.5)
    print("<script>alert(1)</script>", flush=True)
    while not os.path.exists(gate):
        time.sleep(0.02)
    return os.environ["RANK"]

def python_run():
    raise ValueError("<b>no</b> such thing")

def local_run():
    return 7

distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
run = distributor.start(jvm_run, {gate!r})
found = wait_for("jvm_run", "running")
answer["ids"] = [found["run"]]
until = time.monotonic() + 60
while "3 of 40" not in page(f"/phalanx/run/?id={{found['run']}}") and time.monotonic() < until:
    time.sleep(0.05)
answer["running"] = page(f"/phalanx/run/?id={{found['run']}}")
answer["pictures"] = [picture(f"/phalanx/run/?id={{found['run']}}", "running")]
asked = urllib.request.Request(root + "/phalanx/run/stacks/", data=f"id={{found['run']}}".encode(), method="POST")
with urllib.request.urlopen(asked, timeout=30) as answered:
    answer["asked"] = [answered.url.removeprefix(root), answered.read().decode()]
until = time.monotonic() + 30
while "Stacks at" not in (shown := page(f"/phalanx/run/?id={{found['run']}}")) and time.monotonic() < until:
    time.sleep(0.1)
answer["stacks"] = shown
Path({gate!r}).touch()
answer["result"] = run.result()
answer["stages"] = wait_for("jvm_run", "succeeded")["stages"]

def counted(name):
    prefix = "metrics_phalanx_driver_plugin_dev_phalanx_spark_PhalanxPlugin_"
    lines = page("/metrics/prometheus").splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(prefix + name))

def wait_until_counted(name, value):
    until = time.monotonic() + 30
    while counted(name) != value and time.monotonic() < until:
        time.sleep(0.05)
    assert counted(name) == value, f"{{name}} is {{counted(name)}}, not {{value}}"

wait_until_counted("ranks_started_Count", 2)
wait_until_counted("logs_lines_Count", 2)
spark.conf.set("spark.phalanx.stage", "python")
try:
    TorchDistributor(num_processes=2, local_mode=False, use_gpu=False).run(python_run)
except TrainingError as error:
    answer["error"] = str(error)
failed = wait_for("python_run", "failed")
answer["ids"].append(failed["run"])
answer["failed_stages"] = failed["stages"]
# The python stage's ranks are counted, too.
wait_until_counted("ranks_started_Count", 4)
assert counted("ranks_failed_Count") >= 1
wait_until_counted("ranks_running_Value", 0)
answer["failed"] = page(f"/phalanx/run/?id={{failed['run']}}")
answer["unanswered"] = []
if own.SERVER is not None:
    with own.scraping(root.removeprefix("http://"), "/metrics/prometheus") as server:
        answer["unanswered"] = server.without_answer(own.queries(Path({dashboard!r})))
answer["pictures"].append(picture(f"/phalanx/run/?id={{failed['run']}}", "failed"))
TorchDistributor(num_processes=1, local_mode=True, use_gpu=False).run(local_run)
answer["local"] = wait_for("local_run", "succeeded")["snapshot"]["stage"]
answer["list"] = page("/phalanx/")
tell = spark.sparkContext._jvm.dev.phalanx.spark.ui.RunPosts.tell
for ranks in (64, 1000):
    snapshot = json.loads(page(f"/phalanx/run/json?id={{failed['run']}}"))["snapshot"]
    snapshot.update(run=f"simulated-{{ranks}}", name=f"train_{{ranks}}.py", state="running", ended=None, failure=None)
    now = snapshot["time"]
    spans = [("phase", "waiting for tasks", -900, -890), ("phase", "starting ranks", -890, -884),
             ("phase", "training", -884, -500), ("restart", "restart 1", -500, -480), ("phase", "training", -480, None)]
    snapshot.update(started=now - 900, stage="jvm", world_size=ranks, slow=[7, 33], attempt=1)
    snapshot["phases"] = [
        dict(kind=k, name=n, start=now + a, end=None if b is None else now + b) for k, n, a, b in spans
    ]
    snapshot["restarts"] = [dict(time=now - 500, cause="rank 33 (host-4) was killed by signal 9 (SIGKILL)")]
    snapshot["losses"] = [[step, 2.3 / (1 + step * 0.005) + step % 7 * 0.01] for step in range(0, 2000, 10)]
    snapshot["lines"] = [f"[rank {{rank}}] epoch 3: loss {{0.21 + rank / 500:.3f}}" for rank in range(20)]
    snapshot["ranks"] = [
        dict(rank=rank, host=f"host-{{rank // 8}}", partition=rank // 8, executor=str(rank // 8), gpus=[str(rank % 8)],
             state="running", step=1990 - rank % 4, of=5000, rate=4.1 - (rank in (7, 33)) * 2, data_share=rank % 5 / 50,
             collective_share=0.2 + rank % 10 / 50 - (rank in (7, 33)) * 0.15,
             values=dict(epoch=3, loss=0.21 + rank / 500))
        for rank in range(ranks)
    ]
    tell(json.dumps(snapshot))
    wait_for(f"train_{{ranks}}.py", "running")
    answer[f"simulated-{{ranks}}"] = page(f"/phalanx/run/?id=simulated-{{ranks}}")
    answer["pictures"].append(picture(f"/phalanx/run/?id=simulated-{{ranks}}", f"ranks-{{ranks}}"))
"""


SERVER = shutil.which("prometheus")


def queries(dashboard: Path) -> list[str]:
    """What the panels of a dashboard for Grafana ask, of all applications, with the rates of a short time."""
    panels = json.loads(dashboard.read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    return [text.replace("$job", ".*").replace("[5m]", "[10s]") for text in asked]


class Prometheus:
    """A server of Prometheus's, which Debian's package `prometheus` has; it scrapes one page every half second."""

    def __init__(self, address: str) -> None:
        self._address = address

    def without_answer(self, asked: list[str], patience: float = 30.0) -> list[str]:
        """Those of the queries that nothing answers within `patience` seconds."""
        until = time.monotonic() + patience
        while (left := [query for query in asked if not self._answers(query)]) and time.monotonic() < until:
            time.sleep(0.2)
        return left

    def _answers(self, query: str) -> bool:
        """Whether there are values; an error of the server's, as of a query that doesn't parse, is raised."""
        url = f"http://{self._address}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bool(json.load(answer)["data"]["result"])


@contextlib.contextmanager
def scraping(host: str, path: str) -> Iterator[Prometheus]:
    """A server that scrapes a page of `host`, a name and a port; it is gone afterwards."""
    assert SERVER is not None
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="prometheus-") as folder:
        job = {"job_name": "phalanx", "metrics_path": path, "static_configs": [{"targets": [host]}]}
        config = Path(folder) / "prometheus.yml"
        # JSON is YAML.
        config.write_text(json.dumps({"global": {"scrape_interval": "500ms"}, "scrape_configs": [job]}))
        options = [
            f"--config.file={config}",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={address}",
        ]
        with open(Path(folder) / "log", "wb") as log:
            server = subprocess.Popen([SERVER, *options], stdout=log, stderr=log)
        try:
            _wait(server, address, Path(folder) / "log")
            yield Prometheus(address)
        finally:
            server.kill()
            server.wait()


def _wait(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    until = time.monotonic() + 30
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/-/ready", timeout=5):
            return
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)


@whole("an application of its own")
def test_runs_are_in_the_tab_while_they_run_and_when_they_failed(tmp_path: Path) -> None:
    pictures = os.environ.get("PHALANX_PICTURES", str(tmp_path))
    program = PROGRAM.format(
        pictures=pictures,
        gate=str(tmp_path / "gate"),
        dashboard=str(DASHBOARD),
        here=str(Path(__file__).parent),
    )
    logs = tmp_path / "events"
    logs.mkdir()
    conf = {
        **phalanx.spark_conf(),
        **WARM_IF_ASKED,
        **UI,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file:{logs}",
    }
    seen = in_session(ONE_EXECUTOR, program, conf=conf, timeout=280)
    assert seen["result"] == "0"
    where, page = seen["asked"]
    assert where.startswith("/phalanx/run/?id=")
    assert "is asked for the stacks" in page or "Stacks at" in page
    assert "ranks 0-1:" in seen["stacks"], "DISPLAY-10"
    assert "in jvm_run" in seen["stacks"]
    assert "[rank 0] &lt;script&gt;alert(1)&lt;/script&gt;" in seen["running"]
    assert "<script>alert" not in seen["running"] + seen["failed"] + seen["list"]
    assert "<th>Executor</th>" in seen["running"]
    assert "Phalanx: jvm_run" in seen["running"]
    assert len(seen["stages"]) == 1
    assert len(seen["failed_stages"]) == 1
    assert "&lt;b&gt;no&lt;/b&gt; such thing" in seen["failed"]
    assert "Failed: rank " in seen["failed"]
    assert seen["unanswered"] == [], "what the dashboard asks for"
    assert seen["local"] == "local"
    assert all(name in seen["list"] for name in ("jvm_run", "python_run", "local_run"))
    assert seen["simulated-64"].count("host-7") == 8
    assert "host-124" in seen["simulated-1000"]
    assert len(seen["simulated-1000"]) < 1_000_000
    with history.serving(logs, tmp_path / "history.log") as server:
        tab = f"/history/{seen['application']}/phalanx/"
        ended, failed = (server.page(f"{tab}run/?id={run}") for run in seen["ids"])
        listed = server.page(tab)
        if browser.CHROMIUM is not None:
            url = f"{server.address}{tab}run/?id={seen['ids'][1]}"
            seen["pictures"].append(browser.picture(url, Path(pictures) / "history.png"))
    assert "Phalanx: jvm_run" in ended
    assert "[rank 0] &lt;script&gt;alert(1)&lt;/script&gt;" in ended
    assert "&lt;b&gt;no&lt;/b&gt; such thing" in failed
    assert "<script>alert" not in ended + failed + listed
    assert all(name in listed for name in ("jvm_run", "python_run", "local_run"))
    if browser.CHROMIUM is not None:
        assert all(size > 10_000 for size in seen["pictures"])
