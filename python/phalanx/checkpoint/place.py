"""Where a run's checkpoints are: a folder or a URI, and below it the run's name."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

from ..rank import contract
from . import layout, owner

if TYPE_CHECKING:
    from ..plumbing.store import Store

MAX_NAME_BYTES = 100
"""As for `spark.phalanx.checkpoint.name`: rust/types/src/job.rs."""

_NAME = re.compile(r"\w[\w.-]*")

_told = False


def checkpoint_dir() -> str:
    """The folder, or the URI of one, for checkpoints of this job; a folder is made if it isn't there.

    It is what the distributor was given as `checkpoint_dir`, or what `spark.phalanx.checkpoint.directory` or the
    variable `PHALANX_CHECKPOINT_DIR` says. All hosts should share it, and a later run finds it again. Otherwise it is a
    folder beside the job's logs on this host. That folder outlives restarts in place. It is lost with the host, and
    removed after the next few jobs. Ranks on other hosts have another one. Outside a rank it is `checkpoints` in the
    working directory.

    `save` and `latest` keep the run's own below it, in a folder of the run's name.
    """
    from ..plumbing.store import is_uri

    given = os.environ.get(contract.ENV_CHECKPOINT_DIR)
    own = os.environ.get(contract.ENV_RANK_DIR)
    if given:
        path = given
    elif own:
        # the rank's folder is in its task's, and that in the job's
        path = os.path.join(os.path.dirname(os.path.dirname(own)), "checkpoints")
    else:
        path = os.path.abspath("checkpoints")
    if not is_uri(path):
        os.makedirs(path, exist_ok=True)
    return path


def store_of(directory: str | os.PathLike[str] | None, name: str | None) -> Store:
    """Where a call looks: `directory`, or the job's own; and there what has this name, or the run's own."""
    from ..plumbing.store import open_store

    if name is not None and not _NAME.fullmatch(name):
        raise ValueError(
            f"name is {name!r}, but has to be letters, digits, '_', '-' and '.', and to begin with neither '-' nor '.'"
        )
    if name is not None and len(name.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"name is {name!r}, but has to be at most {MAX_NAME_BYTES} bytes long")
    if directory is None:
        folder, name = checkpoint_dir(), name or os.environ.get(contract.ENV_CHECKPOINT_NAME)
    else:
        folder = os.fspath(directory)
    return open_store(f"{folder.rstrip('/') or '/'}/{name}" if name else folder, layout.writer)


def owner_of(directory: object | None, name: str | None) -> owner.Owner | None:
    """Whose the checkpoints of a call are; None where it names its own place, which is shared."""
    return owner.own() if directory is None and name is None else None


def check_shared(directory: object | None) -> None:
    """Raises `RuntimeError` where the job's ranks would look in different folders, see CHECKPOINT-2."""
    problem = None if directory is not None else _not_shared()
    if problem is not None:
        raise RuntimeError(problem)


def warn_not_shared(directory: object | None) -> None:
    """Says so on stderr instead, once."""
    global _told
    problem = None if directory is not None else _not_shared()
    if problem is not None and not _told and sys.stderr is not None:
        _told = True
        print(f"phalanx: {problem}", file=sys.stderr)


def _not_shared() -> str | None:
    """Why ranks of this job would look for checkpoints in different folders; None if they wouldn't."""
    folders = int(os.environ.get(contract.ENV_JOB_FOLDERS, "1"))
    if contract.ENV_RANK_DIR not in os.environ or os.environ.get(contract.ENV_CHECKPOINT_DIR) or folders < 2:
        return None
    return (
        f"the ranks' hosts or executors have {folders} different folders for checkpoints, so the ranks would resume "
        "from different steps; name a folder that all share by `checkpoint_dir` of the distributor, by "
        f"spark.phalanx.checkpoint.directory or by spark.executorEnv.{contract.ENV_CHECKPOINT_DIR}, or give one as "
        "`directory`"
    )
