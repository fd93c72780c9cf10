"""The settings: how they are read. Values and their table are tested in rust/job/src/settings.rs."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from phalanx import _native
from phalanx.request.settings import Settings

pytestmark = pytest.mark.timeout(60)


def test_what_nobody_sets_has_its_default() -> None:
    settings = Settings.read(dict[str, str]().get)
    assert (settings.values, settings.slots_timeout, settings.stage) == ({}, 30.0, "auto")


def test_the_job_has_what_is_set_and_the_defaults(tmp_path: Path) -> None:
    conf = {"spark.phalanx.grace": "7s", "spark.phalanx.logs.live": "false", "spark.other": "x"}
    settings = Settings.read(conf.get)
    assert "spark.other" not in settings.values
    job = _native.Job(name="t", ranks=2, tasks=1, use_gpu=False, settings=settings.values)
    assert (job.name, job.ranks, job.tasks) == ("t", 2, 1)
    hub = _native.Hub(job, bind="127.0.0.1", advertise="127.0.0.1", work_dir=str(tmp_path))
    spec = json.loads(hub.node_spec(3, python=None, env={}, local_gpus=[]))
    hub.close()
    assert (spec["attempt"], spec["job"]["id"], spec["job"]["logs"]["live"]) == (3, job.id, False)
    policy = spec["job"]["policy"]
    assert (policy["grace"], policy["join_timeout"], spec["job"]["use_gpu"]) == (7_000, 120_000, False)


def test_a_bad_value_is_named_with_its_key_and_what_is_allowed() -> None:
    with pytest.raises(ValueError, match=r'spark.phalanx.joinTimeout is "soon", but has to be a time'):
        Settings.read({"spark.phalanx.joinTimeout": "soon"}.get)


def test_an_unknown_key_is_warned_about_with_the_nearest(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "phalanx"):
        Settings.read(dict[str, str]().get, keys=["spark.phalanx.jointimeout", "spark.master"])
    assert [record.message for record in caplog.records] == [
        "spark.phalanx.jointimeout is not a Phalanx setting and has no effect; "
        "did you mean spark.phalanx.joinTimeout?"
    ]
