"""What the tests across languages share: the sessions, the stages that a behaviour is tested over, leftovers.

A *behaviour* is a test with that marker that takes `distributor` or `stage`. It runs in local mode, over the python
stage and over the jvm stage, with warm ranks, and in local mode with cold ones; and, in a process of its own since a
classic session and one of Spark Connect don't share one, over Spark Connect, and in local mode beside it:

    python -m pytest tests                 # everything else
    python -m pytest tests --connect       # the behaviours, over Spark Connect
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import sessions
from support.cluster import Standalone
from support.hosts import TwoHosts, made_or_skipped
from support.installed import Installed, install, wheel_in
from support.programs import TWO_EXECUTORS, classic_conf, eventually, guards
from support.yarn import Missing, Yarn


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--connect", action="store_true", help="run the behaviours over Spark Connect")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("connect"):
        items[:] = [item for item in items if not item.get_closest_marker("remote")]
        return

    def wanted(item: pytest.Item) -> bool:
        has_stage = {"distributor", "stage"} & set(getattr(item, "fixturenames", ()))
        return bool(item.get_closest_marker("behaviour") and has_stage) and not item.get_closest_marker(
            "classic"
        )

    config.hook.pytest_deselected(items=[item for item in items if not wanted(item)])
    items[:] = [item for item in items if wanted(item)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # How a rank starts and what the session is don't touch each other: cold ranks beside one kind of session will do.
    stages, homes = ["python", "jvm"], ["local", "local-cold"]
    if metafunc.config.getoption("connect"):
        stages, homes = ["connect"], ["local"]
    for fixture, faces in (("distributor", [*homes, *stages]), ("stage", stages)):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, faces, indirect=True)


@pytest.fixture(autouse=True)
def no_guard_is_left() -> Iterator[None]:
    yield
    # A test that failed must not take the cluster's slots from the others. One that goes on has its thread, and so has
    # for a moment one that has just ended; to look for it among all objects takes a tenth of a second.
    threads = [thread for thread in threading.enumerate() if thread.name == "phalanx-run"]
    for thread in threads:
        thread.join(0.5)
    if any(thread.is_alive() for thread in threads):
        runs = [thing for thing in gc.get_objects() if type(thing).__module__ == "phalanx.run.run"]
        for run in [thing for thing in runs if type(thing).__name__ == "Run" and not thing.done]:
            run.cancel("the test is over")
    eventually("no guard of ranks is left", 10, lambda: not guards())


@pytest.fixture(scope="module")
def hosts() -> Iterator[TwoHosts]:
    """Two hosts that are network namespaces; the test is skipped where there can't be any."""
    yield from made_or_skipped(TwoHosts)


@pytest.fixture(scope="module")
def spark(request: pytest.FixtureRequest) -> Any:
    """Two executors of one core each, with processes of their own; or a Connect server with two cores."""
    if request.config.getoption("connect"):
        conf = {"spark.phalanx.grace": "1s", "spark.ui.enabled": "false"}
        session = sessions.connect("local[2]", conf | sessions.connect_plugin())
        # The first task of a worker imports pandas and pyarrow, which is nobody's test.
        session.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long", barrier=True).collect()
        return session
    return sessions.classic(classic_conf(TWO_EXECUTORS))


@pytest.fixture
def two_ranks(spark: Any) -> Iterator[Callable[..., Any]]:
    """A distributor of two ranks, with options: `local`, with `-cold` ones, or over the stage that is named."""
    from phalanx import TorchDistributor

    def make(face: str, **options: Any) -> Any:
        where = face.removesuffix("-cold")
        if where in ("python", "jvm"):
            spark.conf.set("spark.phalanx.stage", where)
        warm = False if face.endswith("-cold") else None
        return TorchDistributor(
            num_processes=2, local_mode=where == "local", use_gpu=False, warm=warm, **options
        )

    yield make
    spark.conf.unset("spark.phalanx.stage")


@pytest.fixture
def distributor(request: pytest.FixtureRequest, two_ranks: Callable[..., Any]) -> Any:
    """A distributor of two ranks, on the driver and on executors over each stage."""
    return two_ranks(request.param)


@pytest.fixture
def stage(request: pytest.FixtureRequest, two_ranks: Callable[..., Any]) -> Any:
    """A distributor of two ranks on executors, over each stage."""
    return two_ranks(request.param)


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A master and two workers of two cores each, as processes of their own; a driver in cluster mode takes one."""
    made = Standalone(tmp_path_factory.mktemp("standalone"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    """YARN's daemons with two nodes; the test is skipped where Maven can't bring them.

    They end with the module's tests: idle, they take a twentieth of a processor."""
    try:
        made = Yarn(tmp_path_factory.mktemp("yarn"))
    except Missing as problem:
        pytest.skip(f"there is no YARN here: {problem}")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel, installed without the source tree."""
    folder = tmp_path_factory.mktemp("installed")
    return install(wheel_in(folder), folder / "environment")
