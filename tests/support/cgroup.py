"""Memory cgroups with a limit, of the first or the second kind, whichever the machine has."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from support.programs import eventually


class Cgroup:
    """A memory cgroup with a limit, where one can be made: else `problem` says why not."""

    def __init__(self, name: str, bytes_most: int) -> None:
        self.kind = ""
        self.path = ""
        self.problem = ""
        for kind, mount, limit, no_swap in (
            ("v2", "/sys/fs/cgroup", "memory.max", "memory.swap.max"),
            ("v1", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.swappiness"),
        ):
            path = Path(mount, name)
            try:
                path.mkdir()
                # In a folder that is no cgroup there is no such file, and none is made.
                with (path / limit).open("r+") as file:
                    file.write(str(bytes_most))
                with contextlib.suppress(OSError), (path / no_swap).open("r+") as file:
                    file.write("0")
            except OSError as problem:
                self.problem += f"{problem}; "
                with contextlib.suppress(OSError):
                    path.rmdir()
                continue
            self.kind, self.path = kind, str(path)
            return

    def remove(self) -> None:
        def removed() -> bool:
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
            return not os.path.exists(self.path)

        if self.path:
            eventually(f"the cgroup {self.path} is empty and gone", 20, removed)
