"""A client of Spark Connect: where its hub is, and a server that has gone."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from phalanx import _native
from phalanx.connect import client as connect_client
from phalanx.connect.client import endpoint, own_address_towards
from phalanx.stages import spark as spark_stage
from phalanx.stages.python import PythonStage
from support.fake_run import request_of

pytestmark = pytest.mark.timeout(200)


def client(server: str, **conf: str) -> Any:
    """A session of Spark Connect whose server is at `server` and has these settings."""
    settings = {key.replace("_", "."): value for key, value in conf.items()}
    return SimpleNamespace(_client=SimpleNamespace(host=server), conf=settings)


def test_the_hub_is_told_as_the_clients_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_address_towards("127.0.0.1") == "127.0.0.1"
    assert own_address_towards("no.such.host.invalid") is None
    monkeypatch.setattr(connect_client, "own_address_towards", {"far": "10.1.2.3", "far6": "fd00::9"}.get)
    assert endpoint(client("far", spark_driver_host="10.9.9.9")) == ("10.1.2.3", "10.1.2.3"), "WAY-12"
    assert endpoint(client("far6")) == ("fd00::9", "fd00::9")


def test_beside_the_server_the_drivers_own_rules_hold() -> None:
    near = client("localhost", spark_driver_host="127.0.0.1", spark_driver_bindAddress="0.0.0.0")
    assert endpoint(near) == ("0.0.0.0", "127.0.0.1")
    assert endpoint(client("localhost", spark_driver_host="127.0.0.1")) == ("", "127.0.0.1")


def test_where_tasks_are_told_another_address_the_hub_binds_only_what_is_its_own() -> None:
    assert _native.hub_endpoint("", "127.0.0.1", "", " lb ") == ("127.0.0.1", "lb")
    assert _native.hub_endpoint("", "192.0.2.1", "", "lb") == ("", "lb")  # an address for documentation
    assert _native.hub_endpoint("0.0.0.0", "driver", "127.0.0.3", "") == ("127.0.0.3", "driver")


def test_behind_a_tunnel_the_drivers_address_is_not_taken_for_the_clients() -> None:
    assert endpoint(client("localhost", spark_driver_host="192.0.2.1")) == ("", socket.gethostname())
    no_host: Any = SimpleNamespace(conf={})  # a channel of the user's own making
    assert ipaddress.ip_address(str(own_address_towards("localhost"))).is_loopback
    assert endpoint(no_host) == ("", socket.gethostname())


def test_a_server_that_has_gone_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    forever = threading.Event()
    monkeypatch.setattr(spark_stage, "_CANCEL_S", 0.2)
    monkeypatch.setattr(PythonStage, "_inheriting", lambda self, target: lambda *args: forever.wait())
    session: Any = SimpleNamespace(interruptTag=lambda tag: forever.wait())
    stage = PythonStage(
        request_of(_native.Job(name="train", ranks=1, tasks=1, use_gpu=False, settings={})),
        spark=session,
        local_gpus=[],
    )
    hub: Any = SimpleNamespace()
    stage.start(hub)
    began = time.monotonic()
    try:
        stage.cancel()
        stage.cancel()
        assert not stage.join(30)
        assert time.monotonic() - began < 10
    finally:
        forever.set()
