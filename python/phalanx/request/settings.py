"""The `spark.phalanx.*` settings of a run, read from Spark's configuration. The Rust core has their table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from .. import _native

# The kinds of failure after which torchrun starts ranks again: all that are the ranks'.
ANY_FAILURE = ("exception", "exit_code", "signal", "out_of_memory", "hang", "lost_node")

_log = logging.getLogger("phalanx")


class Settings:
    """The settings of one run, read and checked.

    values          what is set, by key; everything else has its default
    slots_timeout   seconds to wait for task slots
    stage           `auto`, `jvm` or `python`
    progress        `auto`, `rich`, `plain` or `off`
    connect         `auto`, `direct` or `relay`
    node_timeout    seconds after which a silent node is lost
    data_order      `auto`, `computed` or `content`
    max_restarts    how often ranks may start again
    max_preemptions how often they may besides, since a host was to go; None for as often as that happens
    gang            what the run's tasks are to Spark: `barrier`, a stage that starts as a whole, or `tasks`, a job each
    predict_idle    for how many seconds a model's process stays without a task
    """

    def __init__(self, values: dict[str, str]) -> None:
        self.values = values
        told = _native.read_settings(values)
        self.slots_timeout, self.stage, self.progress, self.connect, self.node_timeout = told[:5]
        self.data_order, self.max_restarts, self.max_preemptions, self.gang, self.predict_idle = told[5:]

    @classmethod
    def read(
        cls,
        conf_get: Callable[[str], str | None],
        *,
        keys: Iterable[str] = (),
        given: Mapping[str, str] | None = None,
        defaults: Mapping[str, str] | None = None,
    ) -> Settings:
        """Reads every setting by `conf_get`, but for those that are `given`; `defaults` takes the place of the table's.

        `keys` are the keys that the configuration has at all, if they are known: no others are asked for, and a
        `spark.phalanx.*` key among them that is no setting is warned about, with the nearest one that is.

        Raises `ValueError` for a bad value: the key, the value and what is allowed.
        """
        keys = frozenset(keys)
        asked = [key for key in _native.setting_keys() if not keys or key in keys]
        found = {key: conf_get(key) for key in asked} | dict(given or {})
        there = {key: str(value) for key, value in found.items() if value is not None}
        settings = cls(dict(defaults or {}) | there)
        for sentence in _native.unknown_settings(sorted(keys)):
            _log.warning(sentence)
        return settings
