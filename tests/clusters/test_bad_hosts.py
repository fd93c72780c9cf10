"""A host whose executors die again and again, or that is about to go: the run goes on elsewhere, or there where nothing
else is."""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import phalanx
import pytest
from support.breathing import BREATHES, PARTS
from support.cluster import Host, Standalone
from support.own_session import in_session
from support.tiers import whole

pytestmark = [pytest.mark.timeout(300), whole("a standalone cluster")]

GOOD, BAD = "127.0.0.1", "127.0.0.2"
LOCAL = {"spark.driver.host": GOOD, "spark.driver.bindAddress": GOOD}
PROGRAM = """
import os, tempfile
folder = tempfile.mkdtemp()

def train(folder, bad, fatal):
    # Executors of the bad host die under their ranks in so many attempts; ranks end once all are where none does.
    import os, time
    attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["RANK"]
    is_bad = os.environ["SPARK_LOCAL_IP"] == bad and attempt < fatal
    with open(os.path.join(folder, f"{attempt}-{rank}-" + ("bad" if is_bad else "good")), "w"):
        pass
    while len([name for name in os.listdir(folder) if name.startswith(f"{attempt}-") and "good" in name]) < 2:
        time.sleep(0.1)
    return attempt, os.environ["SPARK_LOCAL_IP"]

def executors_of(worker):
    return [process for process in psutil.Process(worker).children(recursive=True) if is_executor(process)]

def drive(run, worker):
    # What was shown of the run until its end.
    killed, lines, spares, asked = set(), {}, 0, 0
    while not run.done:
        attempts = {name.split("-")[0] for name in os.listdir(folder) if name.endswith("-bad")}
        for attempt in sorted(attempts - killed):
            time.sleep(0.5)
            for process in executors_of(worker):
                process.kill()
            killed.add(attempt)
        seen = run.snapshot()
        lines.update(dict.fromkeys(line for line in seen["lines"] if "[phalanx]" in line))
        seats = seen["seats"] or dict(spares=0, asked=0)  # none before the hub is open
        spares, asked = max(spares, seats["spares"]), max(asked, seats["asked"])
        time.sleep(0.1)
    results, seen = run.results(), run.snapshot()
    lines.update(dict.fromkeys(line for line in seen["lines"] if "[phalanx]" in line))
    until(lambda: not jobs(), 30)
    return dict(results=results, killed=sorted(killed), lines=list(lines), spares=spares, asked=asked,
                cooling=seen["cooling"])
"""


def host(name: str, address: str) -> Host:
    """A host of this name, as its processes see it."""
    return Host(address, ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name))


def cluster_of(folder: Path, hosts: tuple[Host, ...], cores: tuple[int, ...]) -> Iterator[Standalone]:
    if subprocess.run(["unshare", "--uts", "true"], capture_output=True, check=False).returncode:
        pytest.skip("hosts with names of their own can't be made here: unshare --uts is refused")
    standalone = Standalone(folder / "cluster", hosts, cores=cores)
    yield standalone
    standalone.stop()


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[Standalone]:
    """Spark starts executors where most cores are free: on the bad host, as long as it has more."""
    yield from cluster_of(tmp_path, (host("good-host", GOOD), host("bad-host", BAD)), (3, 4))


@pytest.fixture
def bad_host_alone(tmp_path: Path) -> Iterator[Standalone]:
    yield from cluster_of(tmp_path, (host("bad-host", BAD),), (2,))


def play(cluster: Standalone, starter: str, fatal: int, conf: dict[str, str]) -> Any:
    worker = cluster.workers[-1].pid
    stage, jar = ("python", "") if starter == "without the jar" else (starter, phalanx.jar_path())
    return in_session(
        cluster.url,
        PARTS
        + textwrap.dedent(PROGRAM)
        + textwrap.dedent(f"""
        run = of({stage!r}, max_restarts=4).start(train, folder, {BAD!r}, {fatal})
        answer = drive(run, {worker})
        """),
        conf=BREATHES | LOCAL | {"spark.jars": jar, "spark.phalanx.grace": "1s"} | conf,
        timeout=250,
    )


# In the jvm stage hosts are called as Spark calls them.
@pytest.mark.parametrize(
    ("starter", "name"), [("python", "bad-host"), ("jvm", BAD), ("without the jar", "bad-host")]
)
def test_a_host_whose_executors_die_twice_is_left_alone_and_the_third_attempt_runs_elsewhere(
    two_hosts: Standalone, starter: str, name: str
) -> None:
    answer = play(two_hosts, starter, 9, {})
    assert answer["results"] == [[2, GOOD]] * 2, "DRIVER-64"
    assert answer["killed"] == ["0", "1"]
    said = [line for line in answer["lines"] if f"{name} has failed twice" in line]
    assert len(said) == 1, answer["lines"]
    assert "Its new tasks wait for 3600 s (spark.phalanx.host.cooldown)" in said[0]
    assert answer["spares"] >= 1, "STAGE-13, JAR-30"
    assert answer["asked"] >= 3, "STAGE-13, JAR-30"
    assert [(line["host"], line["failures"]) for line in answer["cooling"]] == [(name, 2)]


@pytest.mark.parametrize("starter", ["python", "jvm"])
def test_a_host_that_failed_is_taken_all_the_same_where_spark_has_no_other(
    bad_host_alone: Standalone, starter: str
) -> None:
    answer = play(bad_host_alone, starter, 2, {"spark.phalanx.gang.wait": "40s"})
    assert answer["results"] == [[2, BAD]] * 2, "DRIVER-65"
    assert [line for line in answer["lines"] if "is taken though it has failed" in line], answer["lines"]
    assert answer["cooling"] == [], "DRIVER-65"


LEAVES = """
def leaves(going):
    # Both ranks of the first attempt leave their work because of a notice, which the program below gives then.
    import os, time
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    open(going, "w").close()
    for step in range(600 if attempt == 0 else 0):
        if (notice := phalanx.preempted(step)) is not None:
            raise phalanx.Preempted(step, notice)
        time.sleep(0.1)
    return attempt, os.environ["SPARK_LOCAL_IP"]
"""


@pytest.mark.parametrize("starter", ["python", "jvm", "without the jar"])
def test_ranks_of_a_host_that_a_platform_takes_go_on_where_no_host_is_to_go(
    two_hosts: Standalone, tmp_path: Path, starter: str
) -> None:
    going = tmp_path / "going"
    program = tmp_path / "notice.sh"
    is_going = f'[ -e {going} ] && [ "$SPARK_LOCAL_IP" = {BAD} ]'
    notice = """echo '{"seconds": 600, "reason": "spot"}'"""
    program.write_text(f"for _ in $(seq 20); do sleep 0.1; {is_going} && {notice}; done; true")
    stage, jar = ("python", "") if starter == "without the jar" else (starter, phalanx.jar_path())
    answer = in_session(
        two_hosts.url,
        PARTS
        + textwrap.dedent(LEAVES)
        + textwrap.dedent(f"""
        run = of({stage!r}).start(leaves, {str(going)!r})
        results = run.results(200)
        answer = dict(results=results, lines=[line for line in run.snapshot()["lines"] if "[phalanx]" in line])
        until(lambda: not jobs(), 30)
        """),
        conf=BREATHES | LOCAL | {"spark.jars": jar, "spark.phalanx.notice.command": f"exec sh {program}"},
        timeout=250,
    )
    assert answer["results"] == [[1, GOOD]] * 2, ("DRIVER-72", answer["lines"])
    said = [line for line in answer["lines"] if "is to go (spot). Its new tasks wait" in line]
    assert len(said) == 1, answer["lines"]
