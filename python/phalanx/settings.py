"""Every `spark.phalanx.*` setting: one table, read once a run.

SET-1: what the constructor or `run` is given goes before the Spark configuration, that before the default
here. SET-2: `docs/configuration.md` has exactly this table; a test compares them.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

PREFIX = "spark.phalanx."

_log = logging.getLogger("phalanx")

_MILLIS = {
    "us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip
_BYTES = {unit + b: 1 << 10 * i for i, unit in enumerate(("", "k", "m", "g", "t", "p")) for b in ("", "b")}


@dataclass(frozen=True)
class Setting:
    """One setting: how it is called, what it is by default, what it means and where it goes."""

    key: str
    default: str
    unit: str
    """`time`, `bytes` or `boolean`."""
    meaning: str
    feeds: str
    """The field of Policy or LogPolicy that it sets, e.g. `policy.grace`; "" if it stays in Python."""
    positive: bool = True
    """Whether 0 is refused."""

    @property
    def name(self) -> str:
        """The key without `spark.phalanx.`."""
        return self.key.removeprefix(PREFIX)

    def parsed(self, value: object) -> int | bool:
        """The value in milliseconds, bytes, or as a truth value.

        Raises `ValueError` that names the key, the value and what is allowed.
        """
        text = str(value).strip().lower()
        if self.unit == "boolean":
            if text in ("true", "false"):
                return text == "true"
            raise ValueError(f"{self.key} is {value!r}, but has to be true or false")
        scale, without_unit = (_MILLIS, "s") if self.unit == "time" else (_BYTES, "b")
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text)
        factor = scale.get(match[2] or without_unit) if match else None
        if match is None or factor is None:
            raise ValueError(f"{self.key} is {value!r}, but has to be {_ALLOWED[self.unit]}")
        number = round(float(match[1]) * factor)
        if number == 0 and self.positive:
            raise ValueError(f"{self.key} is {value!r}, but has to be more than 0")
        return number


_ALLOWED = {
    "time": "a time such as 500ms, 30s, 5min or 2h (a plain number means seconds)",
    "bytes": "a size such as 512k, 64m or 1g (a plain number means bytes)",
}

SETTINGS = (
    Setting(
        "spark.phalanx.joinTimeout", "120s", "time",
        "How long after the start every task must have joined; then the run fails and says which are "
        "missing.",
        "policy.join_timeout",
    ),
    Setting(
        "spark.phalanx.connectTimeout", "3s", "time",
        "How long a task tries to reach the driver directly before it exchanges addresses through "
        "Spark's barrier.",
        "policy.connect_timeout",
    ),
    Setting(
        "spark.phalanx.grace", "5s", "time",
        "How long ranks have between SIGTERM and SIGKILL when a run is ended.",
        "policy.grace", positive=False,
    ),
    Setting(
        "spark.phalanx.nodeTimeout", "30s", "time",
        "A node that the driver has not heard of for this long is lost.",
        "policy.node_timeout",
    ),
    Setting(
        "spark.phalanx.results.maxBytes", "64m", "bytes",
        "Results of ranks other than 0 that are larger stay behind; rank 0's has no limit.",
        "policy.max_other_result_bytes", positive=False,
    ),
    Setting(
        "spark.phalanx.logs.maxFileBytes", "1g", "bytes",
        "What a rank's log keeps on its host: beyond it, the older half of the output is dropped, with a notice.",
        "logs.max_file_bytes",
    ),
    Setting(
        "spark.phalanx.logs.maxLiveLag", "64m", "bytes",
        "The live view skips ahead when it is this far behind a rank's output.",
        "logs.max_live_lag_bytes",
    ),
    Setting(
        "spark.phalanx.logs.drainTimeout", "10s", "time",
        "How long a finished run waits for the live view to catch up.",
        "logs.drain_timeout", positive=False,
    ),
    Setting(
        "spark.phalanx.logs.live", "true", "boolean",
        "Whether the ranks' output is shown at the driver while they run.",
        "logs.live",
    ),
    Setting(
        "spark.phalanx.slots.timeout", "30s", "time",
        "How long a run waits for executors to register when the cluster has too few task slots yet.",
        "", positive=False,
    ),
)  # fmt: skip


class Settings:
    """The settings of one run, read and checked."""

    def __init__(self, values: Mapping[str, int | bool]) -> None:
        self._values = dict(values)

    @classmethod
    def read(
        cls,
        conf_get: Callable[[str], str | None],
        *,
        overrides: Mapping[str, object] | None = None,
        keys: Iterable[str] = (),
    ) -> Settings:
        """Reads every setting: from `overrides` (by name: `grace`), else by `conf_get`, else its default.

        `keys` are the keys that the configuration has at all: a `spark.phalanx.*` key among them that is no
        setting is warned about, with the nearest one that is.

        Raises `ValueError` for a bad value, `TypeError` for an override that is no setting.
        """
        given = dict(overrides or {})
        values: dict[str, int | bool] = {}
        for setting in SETTINGS:
            value: object = given.pop(setting.name, None)
            if value is None:
                value = conf_get(setting.key)
            values[setting.name] = setting.parsed(setting.default if value is None else value)
        if given:
            raise TypeError(f"there is no setting {next(iter(given))!r}; there are {', '.join(values)}")
        for sentence in unknown_keys(keys):
            _log.warning(sentence)
        return cls(values)

    def policy(self) -> dict[str, int]:
        """The fields of the job's Policy; times in milliseconds."""
        return self._fed("policy.")

    def logs(self) -> dict[str, Any]:
        """The fields of the job's LogPolicy; times in milliseconds."""
        return self._fed("logs.")

    @property
    def slots_timeout(self) -> float:
        """Seconds to wait for task slots."""
        return self._values["slots.timeout"] / 1000

    def __getitem__(self, name: str) -> int | bool:
        """A setting by its key without `spark.phalanx.`, in milliseconds, bytes or as a truth value."""
        return self._values[name]

    def _fed(self, prefix: str) -> dict[str, Any]:
        return {
            s.feeds.removeprefix(prefix): self._values[s.name] for s in SETTINGS if s.feeds.startswith(prefix)
        }


def unknown_keys(keys: Iterable[str]) -> list[str]:
    """A sentence for every `spark.phalanx.*` key that is no setting."""
    # compared without the prefix, which would make any two keys look alike
    known = {s.name.lower(): s.key for s in SETTINGS}
    sentences = []
    for key in sorted(keys):
        if key.startswith(PREFIX) and key not in known.values():
            near = difflib.get_close_matches(key.removeprefix(PREFIX).lower(), known, n=1)
            hint = f"; did you mean {known[near[0]]}?" if near else ""
            sentences.append(f"{key} is no setting of Phalanx and has no effect{hint}")
    return sentences
