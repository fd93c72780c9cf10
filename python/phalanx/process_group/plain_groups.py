"""Refuses process groups that would send gradients unencrypted to other hosts, where the run encrypts.

BACKEND-6 (no-plain-group): where the node says that ranks encrypt, a group that has ranks of another host is made only
by the backend `phalanx`, unless plain gradients are allowed. gloo has no TLS in torch's packages, and NCCL has none.
BACKEND-7 (at-the-start): a rank learns it from the call that would make the group, before that connects to anybody.
"""

from __future__ import annotations

import functools
import inspect
import os

from ..rank import contract
from . import NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType
    from typing import Any

_MAKER = "_new_process_group_helper"
"""What all of torch's ways to a group come through, since torch 1.13."""
# What torch takes where no backend is named; and one of torch's own that sends nothing.
_DEFAULT, _SENDS_NOTHING = ("gloo", "nccl"), "fake"


def guard(module: ModuleType) -> None:
    """Has torch.distributed.distributed_c10d ask `check` before it makes a group."""
    torchs = getattr(module, _MAKER)
    signature = inspect.signature(torchs)

    @functools.wraps(torchs)
    def maker(*args: Any, **kwargs: Any) -> Any:
        if os.environ.get(contract.ENV_ENCRYPTION) == "on":
            given = signature.bind(*args, **kwargs).arguments
            check(given["global_ranks_in_group"], given["backend"])
        return torchs(*args, **kwargs)

    setattr(module, _MAKER, maker)


def check(ranks: Iterable[int], backend: object) -> None:
    """Raises `RuntimeError` where a group of these ranks (none: of all) may not have this backend."""
    if os.environ.get(contract.ENV_PLAIN_GRADIENTS) == "allowed" or not _leaves_host(list(ranks)):
        return
    plain = [name for name in _names(backend) if name not in (NAME, _SENDS_NOTHING)]
    if plain:
        raise RuntimeError(
            f"a group of {' and '.join(plain)} would send gradients unencrypted to other hosts, and this run encrypts "
            f"(spark.phalanx.encryption): make it with the backend {NAME!r}, or allow it by "
            "spark.phalanx.encryption.allowPlainGradients=true"
        )


def _leaves_host(ranks: list[int]) -> bool:
    first, _, last = os.environ[contract.ENV_HOST_RANKS].partition("-")
    here = range(int(first), int(last) + 1)
    if not ranks:
        return len(here) < int(os.environ[contract.ENV_WORLD_SIZE])
    return int(os.environ[contract.ENV_RANK]) in ranks and any(rank not in here for rank in ranks)


def _names(backend: object) -> list[str]:
    """The backends in what `init_process_group` takes: a name, or one for each type of device."""
    text = str(backend or "").lower()
    names = dict.fromkeys(part.rpartition(":")[2].strip() for part in text.split(","))
    return [one for name in names for one in (_DEFAULT if name in ("", "undefined") else (name,))]
