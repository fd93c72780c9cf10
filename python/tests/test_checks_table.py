"""CHECK-2: the cases of `tests/contract/checks.json`, which Scala's tests read, too."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from phalanx import checks, gpus
from phalanx.settings import Settings, given
from support import REPOSITORY, Cluster

pytestmark = pytest.mark.timeout(60)
LOGGER = logging.getLogger("checks.test")
TABLE: dict[str, list[dict[str, Any]]] = json.loads(
    (REPOSITORY / "tests" / "contract" / "checks.json").read_text()
)
Case = dict[str, Any]


def settings_of(case: Case) -> dict[str, str]:
    return Settings.read(lambda key: None, given=given(**case["given"])).values


def leases(case: Case) -> list[str]:
    earlier = [gpus.take(case["gpus"], count) for count in case["taken"]]
    try:
        with gpus.taken(case["gpus"], case["count"]) as given:
            return given
    finally:
        for lease in earlier:
            lease.release()


# What each part of the table calls, and the field that its cases have the value in.
CALLS: dict[str, tuple[str, Callable[[Case], Any]]] = {
    "num_processes": ("value", lambda case: checks.check_num_processes(case["value"])),
    "given": ("settings", settings_of),
    "num_tasks": (
        "tasks",
        lambda case: gpus.num_tasks(
            case["num_processes"], use_gpu=case["use_gpu"], conf_get=lambda key: case["amount"]
        ),
    ),
    "driver_limited": (
        "ranks",
        lambda case: gpus.driver_limited(
            case["num_processes"], lambda key: case["amount"], {"gpu": 0} if case["gpu"] else {}, LOGGER
        ),
    ),
    "devices": ("devices", lambda case: gpus.devices(case["addresses"], case["visible"])),
    "dynamic_allocation": ("", lambda case: checks.check_dynamic_allocation(case["conf"].get)),
    "encryption": ("", lambda case: checks.check_encryption(case["conf"].get, LOGGER)),
    "most_slots": ("slots", lambda case: checks.most_slots(case["master"], case["conf"].get)),
    "slots": (
        "",
        lambda case: checks.check_slots(
            Cluster(list(case["there"]), case["master"]), case["tasks"], case["timeout_ms"] / 1000, LOGGER
        ),
    ),
    "leases": ("gives", leases),
}


def test_every_part_of_the_table_is_read() -> None:
    assert set(TABLE) - {"about"} == set(CALLS)


@pytest.mark.parametrize(
    ("part", "case"),
    [(part, case) for part in CALLS for case in TABLE[part]],
    ids=[f"{part}-{number + 1}" for part in CALLS for number in range(len(TABLE[part]))],
)
def test_both_languages_check_and_say_the_same(
    part: str, case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    field, call = CALLS[part]
    with caplog.at_level(logging.INFO, "checks.test"):
        if "error" in case:
            with pytest.raises((RuntimeError, ValueError)) as refused:
                call(case)
            assert str(refused.value) == case["error"]
        else:
            value = call(case)
            assert not field or value == case[field]
    said = [f"{record.levelname} {record.message}" for record in caplog.records]
    warned = [f"WARNING {case['warning']}"] if "warning" in case else []
    assert said == warned + [f"INFO {line}" for line in case.get("log", ())]
