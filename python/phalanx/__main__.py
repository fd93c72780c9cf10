"""`python -m phalanx`, which is also the command `phalanx`: `phalanx run`, `phalanx submit` and `phalanx doctor`."""

from __future__ import annotations

import sys


def main() -> int:
    """Runs the command that the command line names; returns the exit code."""
    if sys.argv[1:2] == ["run"]:
        from .launch.command import main as run

        return run(sys.argv[2:])
    if sys.argv[1:2] == ["submit"]:
        from .submit.command import main as submit

        return submit(sys.argv[2:])
    if sys.argv[1:2] == ["doctor"]:
        from .diagnosis.command import main as doctor

        return doctor(sys.argv[2:])
    print(
        "usage: phalanx run train.py --nproc N [args]\n       phalanx submit job.yaml [-- args]\n"
        "       phalanx doctor [--num-processes N] [--no-gpu]\nEach says more with --help",
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    sys.exit(main())
