"""What every pytest of the repository has: the environment of a process of tests, their tiers, and which go together.

With `-n N` the tests run in N processes (pytest-xdist). Tests of a group run in one of them, in their order: those of
a file over one stage, and all that share a cluster of daemons. Each process has an identity and a folder for temporary
files of its own, which all that it starts inherits: the guards against leftovers see nothing of the other processes.
Tests marked `alone` assert how long something takes: `make` runs them when no other test runs.
"""

from __future__ import annotations

import multiprocessing.util
import os
import shutil
import signal
import sys
import tempfile
import threading

import pytest
from support import identity, jvm, sessions, tiers
from support.places import PYTHON

# The groups that begin first, in this order: those that take longest, so that none of them is what is left at the end,
# and those whose tests share a session, so that none starts twice. The package's own tests, which are small, come last.
FIRST = (
    "yarn",
    "libraries",
    "standalone",
    "two executors",
    "one core",
    "test_soak",
    "test_hosts",
    "test_pods",
    "test_leaks",
    "test_hangs",
)
# The parameters by which the tests of a file go apart; those of a driver that they share have others.
APART = ("face", "distributor", "stage")

_FOLDER = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return  # it only hands out the tests
    # What a test leaves for a person to read outlives the folder for temporary files.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix="tests-", dir=os.environ["PYTEST_DEBUG_TEMPROOT"])
    config.stash[_FOLDER] = folder
    identity.take()
    # What a shell starts in its background ignores Ctrl-C, and so would the drivers that tests start and interrupt.
    if (
        signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(jvm.environment(folder))
    tempfile.tempdir = None
    # Executors have the Python of the tests, whose environment knows the package; everything stays on the loopback.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # torch's store asks for the name of who connects. A name server that leaves the question unanswered costs 5 s, or
    # this.
    os.environ.setdefault("RES_OPTIONS", "timeout:1")


def pytest_unconfigure(config: pytest.Config) -> None:
    if folder := config.stash.get(_FOLDER, None):
        sessions.end()
        # The folder of multiprocessing's server of forks (support/backend_ranks.py) is in it, and goes first: -100.
        multiprocessing.util.Finalize(None, shutil.rmtree, (folder, True), exitpriority=-200)


def group_of(item: pytest.Item) -> str:
    fixtures = getattr(item, "fixturenames", ())
    if "standalone" in fixtures:
        return "standalone"
    if "yarn" in fixtures:
        return "yarn"
    if "installed" in fixtures:
        return "installed"
    if item.path.parent.name == "integrations":  # a pool has the libraries of all of them
        return "libraries"
    if "pysparks" in fixtures:  # half a minute of processor time, once for both stages
        return "pysparks"
    if "hosts" in fixtures:
        return f"{item.path.stem}-hosts"
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if "spark" in parameters:
        return "one core with the jar" if parameters["spark"] == "jvm" else "one core"
    if item.path.parent.name == "local":
        return "one core"
    # All of `make test` that shares the session of tests/conftest.py: its start takes half a minute beside other tests.
    if shares_executors(item) and not item.get_closest_marker("whole"):
        return "two executors"
    return "-".join([item.path.stem, *(str(parameters[name]) for name in APART if name in parameters)])


def shares_executors(item: pytest.Item) -> bool:
    """Whether a test has the session with two executors that files share."""
    found = getattr(item, "_fixtureinfo", None)
    sparks = found.name2fixturedefs.get("spark", ()) if found is not None else ()
    return bool(sparks) and sparks[-1].baseid == "tests"


def turn(item: pytest.Item) -> tuple[int, bool]:
    """When it comes. A driver that has had MLflow's tests takes twice as long for those of Transformers."""
    if item.path.is_relative_to(PYTHON):
        return len(FIRST) + 1, False
    group = group_of(item)
    first = (i for i, name in enumerate(FIRST) if group.startswith(name))
    return next(first, len(FIRST)), item.path.stem == "test_mlflow"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups, and -m the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.mark(items, connect=config.getoption("connect", False))
    if hasattr(config, "workerinput"):
        for item in items:
            item.add_marker(pytest.mark.xdist_group(group_of(item)))
    items.sort(key=turn)


def pytest_collection_finish(session: pytest.Session) -> None:
    # Versions of pytest and pytest-xdist that don't fit each other hand out the tests of a group one by one.
    grouped = getattr(session.config.option, "loadgroup", False)
    if grouped and not all("@" in item.nodeid for item in session.items):
        raise pytest.UsageError("pytest-xdist doesn't keep the tests of a group together")
