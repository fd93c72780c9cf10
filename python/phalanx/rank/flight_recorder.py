"""What torch's flight recorder says of this rank's collective operations: those of gloo and NCCL, which write nothing
for the watchdog.

RANK-11 (asked-when-stuck): a dump takes up to a tenth of a second. It is made only where the main thread has not run
Python since the last beat, and then once in `ASK_AGAIN_BEATS`.
RANK-12 (kept-while-stuck): all that the recorder has is then written where torch would write it, `ENV_FLIGHT_RECORDER`
and the rank, at most once in `ASK_AGAIN_BEATS`: the rank may be ended at any time, and a hang has no last word.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

from ..plumbing.whole_file import whole_or_absent
from . import contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ASK_AGAIN_BEATS = 10

# The recorder of NCCL, and that of groups on CPUs: what is in flight as JSON, and all as torch's own tools read it.
# Which of them torch has depends on its version.
_DUMPS = (("_dump_nccl_trace_json", "_dump_nccl_trace"), ("_dump_fr_trace_json", "_dump_fr_trace"))
_MAX_CHARS = 100


class FlightRecorder:
    """The oldest operation that is not over, kept from one beat to the next."""

    def __init__(self) -> None:
        self._operation: dict[str, Any] | None = None
        self._beats = 0
        self._beats_since_kept = ASK_AGAIN_BEATS

    def forget(self) -> None:
        """The main thread runs: what was known is past."""
        self._operation, self._beats = None, 0
        self._beats_since_kept += 1

    def in_flight(self) -> str:
        """The operation, in words; empty if there is none, or torch can't tell."""
        self._beats_since_kept += 1
        if self._beats == 0:
            self._operation, dump = _oldest()
            self._beats = ASK_AGAIN_BEATS
            if dump and self._beats_since_kept >= ASK_AGAIN_BEATS:
                self._beats_since_kept = 0
                with contextlib.suppress(OSError):  # a full disk
                    _keep(dump)
        self._beats -= 1
        return "" if self._operation is None else describe(self._operation, time.time_ns())


def describe(operation: dict[str, Any], now_ns: int) -> str:
    """An entry of the recorder, in words."""
    group = operation["process_group"]
    sequence = operation["p2p_seq_id" if operation["is_p2p"] else "collective_seq_id"]
    types, sizes = operation["input_dtypes"], operation["input_sizes"]
    of = "".join(f" of {kind} {size}" for kind, size in zip(types[:1], sizes[:1], strict=False))
    more = f" and {len(types) - 1} more" if len(types) > 1 else ""
    seconds = max(now_ns - operation["time_created_ns"], 0) / 1e9
    text = f"{operation['profiling_name']}{of}{more}, operation {sequence} of group {group[1] or group[0]}"
    return f"{text[:_MAX_CHARS]}, for {seconds:.0f} s"


def _oldest() -> tuple[dict[str, Any] | None, str]:
    """The operation that is in flight for longest, and the function that dumps all of its recorder; where none is in
    flight, that of a recorder with a group."""
    native = sys.modules.get("torch._C._distributed_c10d")
    found: list[tuple[dict[str, Any], str]] = []
    in_use = ""
    for active, whole in _DUMPS:
        dump = getattr(native, active, None)
        if dump is not None:
            told = json.loads(dump(True, True))
            entries = told.get("entries") or []
            stuck = [entry for entry in entries if not entry["retired"] and entry["state"] != "completed"]
            found += [(entry, whole) for entry in stuck]
            in_use = in_use or (whole if told.get("pg_status") else "")
    return min(found, key=lambda one: int(one[0]["time_created_ns"]), default=(None, in_use))


def _keep(dump: str) -> None:
    """RANK-12"""
    prefix = os.environ.get(contract.ENV_FLIGHT_RECORDER) or os.environ.get(contract.ENV_NCCL_FLIGHT_RECORDER)
    if prefix:
        # Torch's tools take each file whose name has the prefix for a rank's.
        part = os.path.join(os.path.dirname(prefix), f".part-{os.getpid()}")
        # To show where each operation was called torch imports its compiler, which takes seconds.
        stacks = "torch._inductor.codecache" in sys.modules
        with whole_or_absent(prefix + os.environ[contract.ENV_RANK], part=part) as file:
            file.write(getattr(sys.modules["torch._C._distributed_c10d"], dump)(True, stacks))
