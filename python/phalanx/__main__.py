"""`python -m phalanx`, which is also the command `phalanx`: `phalanx submit` and `phalanx doctor`."""

from __future__ import annotations

import sys


def main() -> int:
    """Runs the command that the command line names; returns the exit code."""
    if sys.argv[1:2] == ["submit"]:
        from .submit.command import main as submit

        return submit(sys.argv[2:])
    if sys.argv[1:2] == ["doctor"]:
        from .diagnosis.command import main as doctor

        return doctor(sys.argv[2:])
    print(
        "usage: phalanx submit job.yaml [-- args]\n       phalanx doctor [--num-processes N] [--no-gpu]\n"
        "`phalanx submit --help` and `phalanx doctor --help` say more",
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    sys.exit(main())
