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
