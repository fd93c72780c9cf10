"""As JOB-16 says, the cases of `tests/contract/checks.json`, which the tests of Rust and Scala run, too."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from phalanx.options import Options
from phalanx.request import preflight, run_profile
from phalanx.request.settings import Settings
from phalanx.stages.spark_errors import explain
from support.fakes import FakeCluster
from support.places import CONTRACT

pytestmark = pytest.mark.timeout(60)
LOGGER = logging.getLogger("checks.test")
TABLE: dict[str, list[dict[str, Any]]] = json.loads((CONTRACT / "checks.json").read_text())
ERRORS = {
    row["kind"]: row["python"]["class"]
    for row in json.loads((CONTRACT / "errors.json").read_text())["errors"]
}
Case = dict[str, Any]


def settings_of(case: Case) -> dict[str, str]:
    return Settings.read(lambda key: None, given=Options(**case["given"]).settings).values


def plan(case: Case, *, local_mode: bool) -> tuple[int, int]:
    return preflight.plan(
        case["num_processes"],
        local_mode=local_mode,
        use_gpu=case.get("use_gpu", True),
        conf_get=lambda key: case.get("conf", {}).get(key) if "phalanx" in key else case["amount"],
        resources=lambda: {"gpu": 0} if case["gpu"] else {},
        logger=LOGGER,
    )


def lease(gpus: list[str], count: int) -> preflight.Lease:
    context = SimpleNamespace(resources={"gpu": SimpleNamespace(addresses=gpus)})
    session = SimpleNamespace(_jsparkSession=None, sparkContext=context, conf={})
    return preflight.Lease(session, count, use_gpu=True, local_mode=True)


def leases(case: Case) -> list[str]:
    held = [lease(case["gpus"], count) for count in case["taken"]]
    try:
        held.append(lease(case["gpus"], case["count"]))
        return held[-1].gpus
    finally:
        for one in held:
            one.release()


def devices(case: Case) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if case["visible"] is not None:
            patch.setenv("CUDA_VISIBLE_DEVICES", case["visible"])
        taken = lease(case["addresses"], len(case["addresses"]))
        taken.release()
        return taken.gpus


def may_start(case: Case) -> None:
    preflight.check_start(case.get("conf", {}).get, LOGGER)


def profile(case: Case) -> list[int] | None:
    session = SimpleNamespace(conf=case["conf"], version=case["spark"])
    taken = run_profile.taken_by(
        session,
        case["conf"],
        use_gpu=case.get("use_gpu", False),
        local_mode=case.get("local_mode", False),
        of_dataframe=case.get("of_dataframe", False),
    )
    if taken is None:
        return None
    cpus, gpus, own = taken
    return [cpus, gpus, *([] if own is None else [own[0], own[1], own[4]])]


def most_slots(case: Case) -> int | None:
    cluster = FakeCluster([0], case["master"], **case["conf"])
    with pytest.raises(RuntimeError) as refused:
        preflight.check_slots(cluster, (case["slots"] or 0) + 1, 0, LOGGER)
    never_more = f"there are never more than {case['slots']};" in str(refused.value)
    return case["slots"] if never_more else None


def slots(case: Case) -> None:
    cluster = FakeCluster(list(case["there"]), case["master"])
    preflight.check_slots(cluster, case["tasks"], case["timeout_ms"] / 1000, LOGGER)


def train_file(case: Case, folder: Path) -> None:
    path = folder / "train.py"
    if case["found"] == "file":
        path.touch()
    elif case["found"] == "directory":
        path.mkdir()
    preflight.check_train_object(path, dict.fromkeys(case["keywords"]))


def stage_failure(case: Case) -> str:
    error: BaseException = type(case["class"], (Exception,), {})(case["text"])
    kind, sentence = explain(error)
    assert kind == case.get("kind", "start")
    return sentence


# What each part of the table calls, and the field that its cases have the value in.
CALLS: dict[str, tuple[str, Callable[[Case, Path], Any]]] = {
    "num_processes": ("value", lambda case, _: preflight.check_num_processes(case["value"])),
    "given": ("settings", lambda case, _: settings_of(case)),
    "num_tasks": ("tasks", lambda case, _: plan(case, local_mode=False)[1]),
    "driver_limited": ("ranks", lambda case, _: plan(case, local_mode=True)[0]),
    "devices": ("devices", lambda case, _: devices(case)),
    "dynamic_allocation": ("", lambda case, _: may_start(case)),
    "encryption": ("", lambda case, _: may_start(case)),
    "profile": ("profile", lambda case, _: profile(case)),
    "executor_cores": ("cores", lambda case, _: preflight.executor_cores(case["conf"].get)),
    "most_slots": ("slots", lambda case, _: most_slots(case)),
    "slots": ("", lambda case, _: slots(case)),
    "leases": ("gives", lambda case, _: leases(case)),
    "train_file": ("", train_file),
    "stage_failure": ("sentence", lambda case, _: stage_failure(case)),
}


def test_every_part_of_the_table_is_read() -> None:
    assert set(TABLE) - {"about"} == set(CALLS)


@pytest.mark.parametrize(
    ("part", "case"),
    [(part, case) for part in CALLS for case in TABLE[part] if case.get("only") != "scala"],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_language_decides_and_says_the_same(
    part: str, case: Case, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    field, call = CALLS[part]
    with caplog.at_level(logging.INFO, "checks.test"):
        if "error" in case:
            module, _, name = ERRORS[case["kind"]].rpartition(".")
            with pytest.raises(getattr(importlib.import_module(module), name)) as refused:
                call(case, tmp_path)
            assert str(refused.value) == case["error"].replace("PATH", str(tmp_path / "train.py"))
            assert refused.value.kind == case["kind"]  # type: ignore[attr-defined]
        else:
            value = call(case, tmp_path)
            assert not field or value == case[field]
    said = [f"{record.levelname} {record.message}" for record in caplog.records]
    warned = [f"WARNING {case['warning']}"] if "warning" in case else []
    assert part == "most_slots" or said == warned + [f"INFO {line}" for line in case.get("log", ())]
