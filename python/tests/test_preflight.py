"""What is refused before a stage starts, and how it is said."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from phalanx.request import preflight
from support.fakes import FakeCluster

pytestmark = pytest.mark.timeout(150)
LOGGER = logging.getLogger("test")
NO_CONF: dict[str, str] = {}


@pytest.mark.parametrize("value", [True, 2.0, "2", None, [2]])
def test_num_processes_has_to_be_an_int(value: object) -> None:
    with pytest.raises(TypeError, match="num_processes has to be an int, not"):
        preflight.check_num_processes(value)


def test_num_processes_may_be_numpys() -> None:
    import numpy

    number = preflight.check_num_processes(numpy.int64(3))
    assert (number, type(number)) == (3, int)


def test_train_object_is_a_function_or_a_file(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    for fine in (print, lambda: 0, str(script), script, SimpleNamespace):
        preflight.check_train_object(fine, {})
    for wrong in (3, None, b"train.py"):
        with pytest.raises(TypeError, match="train_object has to be a function or the path of a Python file"):
            preflight.check_train_object(wrong, {})
    with pytest.raises(FileNotFoundError, match=f"there is no training file {tmp_path}/none.py"):
        preflight.check_train_object(str(tmp_path / "none.py"), {})
    with pytest.raises(IsADirectoryError, match="is a directory"):
        preflight.check_train_object(tmp_path, {})
    (tmp_path / "__main__").mkdir()
    with pytest.raises(IsADirectoryError, match="is a directory without a __main__"):
        preflight.check_train_object(tmp_path, {})
    (tmp_path / "__main__.py").touch()
    preflight.check_train_object(tmp_path, {})
    with pytest.raises(ValueError, match="does not support key-word type arguments: lr"):
        preflight.check_train_object(str(script), {"lr": 1})
    preflight.check_train_object(print, {"lr": 1})


def test_d12_a_cluster_with_tls_trains(caplog: pytest.LogCaptureFixture) -> None:
    ignored = {"spark.ssl.enabled": "true", "pytorch.spark.distributor.ignoreSsl": "true"}
    preflight.check_start(ignored.get, LOGGER)
    preflight.check_start({"spark.ssl.rpc.enabled": "true"}.get, LOGGER)
    assert not caplog.records
    preflight.check_start({"spark.ssl.enabled": "true"}.get, LOGGER)
    assert "unencrypted" in caplog.text
    preflight.check_start({"spark.phalanx.encryption": "required"}.get, LOGGER)
    assert "token" in caplog.text


def test_too_few_slots_at_the_deadline_say_how_many_there_are() -> None:
    began = time.monotonic()
    with pytest.raises(RuntimeError) as raised:
        preflight.check_slots(FakeCluster([3]), 4, 0.3, LOGGER)
    assert 0.3 <= time.monotonic() - began < 5, "JOB-15"
    assert "needs 4 task slots at once, but after 0.3 s the registered executors have 3" in str(raised.value)
    assert "spark.phalanx.slots.timeout" in str(raised.value)


@pytest.mark.parametrize(
    ("master", "most"),
    [("local[3]", 3), ("local[3,2]", 3), ("local-cluster[2,1,1024]", 2), ("local[*]", None)],
)
def test_spark_connect_is_not_asked_for_slots_but_its_settings_are(master: str, most: int | None) -> None:
    began = time.monotonic()
    server = SimpleNamespace(conf={"spark.master": master})
    preflight.check_slots(server, most or 99, 60, LOGGER)
    if most is not None:
        with pytest.raises(RuntimeError, match=f"there are never more than {most};"):
            preflight.check_slots(server, most + 1, 60, LOGGER)
    preflight.check_slots(SimpleNamespace(conf={}), 99, 60, LOGGER)
    assert time.monotonic() - began < 30


def test_nothing_here_touches_the_environment() -> None:
    before = dict(os.environ)
    preflight.check_train_object(print, {})
    assert dict(os.environ) == before
