"""A warm pool's entry. A client starts it below a guard of its own.

It imports what `PHALANX_POOL` lists. Then it only waits on the socket that is descriptor 3, where clients connect. For
each job the client sends the control socket of a new guard and a pidfd of the client. The pool forks a process, which
becomes this guard, and the guard forks the ranks.

POOL-1 (like-new): to its user a rank is a process that was just started. This holds for session, descriptors,
environment, working directory, signal handlers, `__main__`, random generators and the threads of numerical libraries.
It shares one thing with the other ranks: the seed of `hash`, unless PYTHONHASHSEED sets it.
POOL-2 (other-modules): if a rank's modules would differ from the pool's, or what `warm.imports` names has read another
environment than the rank's, the rank starts anew, as a program.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys

from ..rank import contract, ending, spark_files
from ..rank import entry as rank_entry
from .fork_safety import fork_problem, unfit
from .late_import import Reads, hide, show
from .module_check import Imported
from .process_reset import Restorer
from .server import Pool
from .wrapper_env import Wrapper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

_SOCKET = 3
_NAME = "phalanx-pool"
# What a fork runs that is told no other module; it is imported before, with the rest of what ranks need.
_RANK = rank_entry.__name__


def main() -> NoReturn:
    """Serves until it is idle for too long or its client has gone; in a rank, runs the rank."""
    before = {name for name in sys.modules if not name.startswith("torch")}
    ending.arrange()
    told = json.loads(os.environ.pop(contract.ENV_POOL))
    wrapper = Wrapper(told["env"])
    restorer = Restorer()
    listener = socket.socket(fileno=_SOCKET)
    listener.set_inheritable(False)
    _rename(_NAME)
    reads, began = Reads(), dict(os.environ)
    names: list[str] = told["imports"]
    missing = _import(names, reads)

    def import_later() -> Imported:
        show()
        names.extend(told["later"])
        _import(told["later"], reads)
        imported = Imported(before)
        problem = fork_problem()
        if problem is not None:
            pool.refuse(problem)
        hide(names, reads)
        return imported

    pool = Pool(listener, Imported(before), missing, told["idle_ms"], import_later if told["later"] else None)
    problem = unfit(pool.imported) or fork_problem()
    if problem is not None:
        pool.refuse(problem)
    # Not in each rank, which would copy the memory of every module.
    hide(names, reads)
    ending.arrange()
    _silence()
    program, args, given = pool.serve()
    # From here on this is a rank.
    env = wrapper.applied(dict(given))
    restorer.restore(dict(given) if env is None else env)
    if env is None:
        _start_anew(program, args, "the script that starts Python sets a variable from others")
    sys.orig_argv[:] = [program, *args]
    own = importlib.import_module(os.environ.get(contract.ENV_ENTRY) or _RANK)
    why = None
    with contextlib.suppress(Exception):  # a payload that can't be read is the rank's to tell
        why = pool.imported.shadowed(own.path_to_be()) or reads.outdated(began, os.environ)
    if why is not None:
        _start_anew(program, args, why)
    hide(names, reads)
    ending.keep(sys.modules["__main__"])
    run: Callable[[], NoReturn] = own.run
    run()


def _import(names: list[str], reads: Reads) -> list[str]:
    """Imports what there is, with the path of a rank, and notes what it reads; what there is not, in sentences.

    No garbage is looked for meanwhile, which takes a fifth of the processor time of `import torch`; nor among these
    objects in a rank, which would copy each page that it looks at.
    """
    gc.disable()
    entries = spark_files.entries(os.environ)
    sys.path[:0] = entries
    missing = []
    for name in names:
        try:
            with reads.noted(name.partition(".")[0]):
                importlib.import_module(name)
        except BaseException as problem:  # whatever a module does, the others are of use
            if not isinstance(problem, ModuleNotFoundError) or problem.name != name.partition(".")[0]:
                missing.append(f"{name}: {type(problem).__name__}: {problem}")
            else:
                missing.append(f"{name}, which is not installed")
    for entry in entries:
        with contextlib.suppress(ValueError):
            sys.path.remove(entry)
    gc.freeze()
    gc.enable()
    return missing


def _start_anew(program: str, args: list[str], why: str) -> NoReturn:
    """Makes this rank the program that a cold one is from the start."""
    with contextlib.suppress(OSError):
        os.write(_SOCKET, json.dumps({contract.NOTE_COLD: why}).encode() + b"\n")
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(program, [program, *args], os.environ)


def _rename(name: str) -> None:
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


def _silence() -> None:
    """Nothing is to be printed from here on, nor kept in a buffer for every rank to print."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
