"""The `spark.phalanx.*` settings of a run, read from Spark's configuration; their table is the Rust core's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from . import _native

_log = logging.getLogger("phalanx")


class Settings:
    """The settings of one run, read and checked.

    values          what is set, by key; everything else has its default
    slots_timeout   seconds to wait for task slots
    stage           `auto`, `jvm` or `python`
    """

    def __init__(self, values: dict[str, str]) -> None:
        self.values = values
        try:
            self.slots_timeout, self.stage = _native.read_settings(values)
        except _native.NativeError as error:
            raise ValueError(str(error)) from None

    @classmethod
    def read(
        cls,
        conf_get: Callable[[str], str | None],
        *,
        keys: Iterable[str] = (),
        given: Mapping[str, str] | None = None,
    ) -> Settings:
        """Reads every setting by `conf_get`, but for those that are `given`.

        `keys` are the keys that the configuration has at all: a `spark.phalanx.*` key among them that is no
        setting is warned about, with the nearest one that is.

        Raises `ValueError` for a bad value: the key, the value and what is allowed.
        """
        found = {key: conf_get(key) for key in _native.setting_keys()} | dict(given or {})
        settings = cls({key: str(value) for key, value in found.items() if value is not None})
        for sentence in _native.unknown_settings(sorted(keys)):
            _log.warning(sentence)
        return settings


def given(
    *,
    warm: bool | None = None,
    max_restarts: int | None = None,
    restart_on: Iterable[str] | None = None,
    hang_timeout: float | None = None,
    grace: float | None = None,
) -> dict[str, str]:
    """What a distributor was given, as settings; times are in seconds."""
    found: dict[str, str] = {}
    if warm is not None:
        found["spark.phalanx.warm.enabled"] = str(bool(warm)).lower()
    if max_restarts is not None:
        found["spark.phalanx.maxRestarts"] = str(max_restarts)
    if restart_on is not None:
        found["spark.phalanx.restartOn"] = ",".join(
            [restart_on] if isinstance(restart_on, str) else restart_on
        )
    if hang_timeout is not None:
        found["spark.phalanx.hangTimeout"] = f"{hang_timeout * 1000:.0f}ms"
    if grace is not None:
        found["spark.phalanx.grace"] = f"{grace * 1000:.0f}ms"
    return found
