"""How a rank's process ends: as a Python interpreter ends, but for what is known to hang or to abort.

RANK-1 (nothing-lost): threads that are no daemons are waited for, and exit handlers run. What the training code's
modules and reference cycles hold is let go. Files that are open still are flushed, and so are C's streams. C's exit
handlers run. What was there before the training code is nobody's to take apart, whatever names `sys.modules` has for
it.
RANK-2 (torch-whole): torch's own modules stay as they are, and C's handlers from before torch was loaded don't run,
torch's among them: gloo's threads abort a process that takes torch apart under them, and it takes a third of a
second. If there is a process group and CUDA is in use, none of C's handlers run, and the rank says so: NCCL's threads
and CUDA's driver hang on one another. What an extension gave to `Py_AtExit` isn't called: the interpreter is never
taken apart.
RANK-3 (in-time): a rank that failed is gone `FAILED_EXIT_SECONDS` later, whatever its threads and exit handlers do.
One that has left its result waits for these for `HANDLERS_SECONDS`, and says so after `LAST_SECONDS`; one that has left
its work, since a host is to go, waits as long, or until its node ends it; a file that gave
none waits as Python does. Then it takes `LAST_SECONDS` at most; it says what was not done. Where that decides nothing,
because the result was left, it ends with `CUT_OFF` then, so that the run tells of it.
RANK-36 (code-stands): the exit code is known before any of this begins. Nothing that Python raises on the way changes
it, not even where the training code has taken Python's own modules apart.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import faulthandler
import gc
import io
import os
import sys
import time
from types import ModuleType

from ..plumbing.import_hooks import after_import
from . import error_record, reporting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

# How long a rank that failed may wait for its threads and exit handlers (CPython waits forever). The other
# ranks wait for it in their collectives meanwhile; trackers such as wandb flush in an exit handler and want a
# few seconds.
FAILED_EXIT_SECONDS = 10.0

# How long objects and C's handlers may take in a rank that ended well: enough for a network file system to take what
# was not written yet.
LAST_SECONDS = 60.0

# How long threads and exit handlers may take in a rank that has left its result: enough to send a large checkpoint
# somewhere. The run has all that it needs, and waits for nothing but them.
HANDLERS_SECONDS = 600.0

# The exit code of a rank that has left its work, since a host is to go: EX_TEMPFAIL of sysexits.h, try again later.
PREEMPTED = 75

# The exit code of a rank that has left its result and could not do all that it had to do then.
CUT_OFF = 1

# How much longer code that never lets Python run is waited for, which nothing in Python can end.
NATIVE_SECONDS = 5.0

# Never let go: what is needed to the end, and torch, see RANK-2.
_KEPT = ("phalanx", "torch")
_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)

# Modules that were there before the training code, by id; held, so that no other gets the id of one. And their names:
# a rank copies the memory of each object that it looks at. `__main__` isn't among these, since a script has its own.
_before: dict[int, object] = {id(module): module for module in sys.modules.values()}
_names = frozenset(sys.modules) - {"__main__"}
_marked = False
# Of this module's own: those of others may be gone by then.
_exit_at_once = os._exit
_namespace = vars(ModuleType)["__dict__"].__get__


def arrange() -> None:
    """To be called when a rank, or a pool that will fork ranks, has just begun."""
    global _before, _names
    _before = {id(module): module for module in sys.modules.values()}
    _names = frozenset(sys.modules) - {"__main__"}
    if not _marked:
        after_import(("torch",), _mark)


def keep(module: ModuleType) -> None:
    """Has a module count as one that was there before the training code."""
    _before[id(module)] = module


def leave(code: int) -> NoReturn:
    """Ends the process with this code."""
    try:
        _end(code)
    finally:
        _exit_at_once(code)  # returns to nobody, so neither does what was raised


def _end(code: int) -> None:
    if code == PREEMPTED:
        _within(
            HANDLERS_SECONDS,
            code,
            "threads or exit handlers still busy {} s after the rank has left its work",
        )
    elif code != 0:
        _within(FAILED_EXIT_SECONDS, code, "threads or exit handlers still busy {} s after the failure")
    busy = _thread.allocate_lock()
    busy.acquire()
    if code == 0 and reporting.has_returned():
        _start(_wait_for_handlers, busy)
        _end_natively(HANDLERS_SECONDS)
    threading = sys.modules.get("threading")
    try:
        if threading is not None:
            threading._shutdown()  # waits for the threads that aren't daemons
    except BaseException as problem:
        error_record.show(problem)
    _keep_operators()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()  # prints what its functions raise
    busy.release()
    if code == 0:
        _within(
            LAST_SECONDS,
            CUT_OFF if reporting.has_returned() else code,
            "what the training code had not closed is not all written {} s after its exit handlers",
        )
    with contextlib.suppress(BaseException):
        _restore_streams()
        _flush_files()  # of a file in a cycle, the buffer may end before the text in front of it
        _let_go()
        _flush_files()
    _exit(code)


def _keep_operators() -> None:
    """Spares the process that torch takes back, one by one, the operators that it has registered: 50 ms of work."""
    weakref = sys.modules.get("weakref")
    with contextlib.suppress(Exception):
        for finalizer in list(weakref.finalize._registry):  # type: ignore[union-attr]
            what = finalizer.peek()
            if what is not None and getattr(what[1], "__module__", None) == "torch.library":
                finalizer.atexit = False


def _within(seconds: float, code: int, what: str) -> None:
    _start(_leave_in_time, seconds, code, what)
    _end_natively(seconds)


def _start(function: Callable[..., None], *args: object) -> None:
    with contextlib.suppress(BaseException):  # there may be no room for one more thread
        _thread.start_new_thread(function, args)


def _end_natively(seconds: float) -> None:
    """Also where no thread of Python gets to run. The exit code is another one then, so not where it is all that the
    node goes by."""
    if reporting.has_failed() or reporting.has_returned():
        with contextlib.suppress(BaseException):
            faulthandler.dump_traceback_later(seconds + NATIVE_SECONDS, exit=True, file=2)


def _wait_for_handlers(busy: _thread.LockType) -> None:
    said = min(LAST_SECONDS, HANDLERS_SECONDS)
    what = "threads or exit handlers still busy {:.0f} s after the result was left"
    if busy.acquire(timeout=said):
        return
    _say(f"{what.format(said)}; they have {HANDLERS_SECONDS - said:.0f} s more")
    if not busy.acquire(timeout=HANDLERS_SECONDS - said):
        _leave_in_time(0, CUT_OFF, what.format(HANDLERS_SECONDS))


def _leave_in_time(seconds: float, code: int, what: str) -> None:
    time.sleep(seconds)
    _say(f"{what.format(f'{seconds:.0f}')}:")
    with contextlib.suppress(OSError, ValueError, AttributeError):
        faulthandler.dump_traceback()
    _exit_at_once(code)


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"phalanx: {text}\n")
        sys.stderr.flush()


def _restore_streams() -> None:
    """A stream that the training code put in the place of stdout or stderr is one of its files."""
    _flush_streams()
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    sys.excepthook = sys.__excepthook__
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()


def _let_go() -> None:
    """Lets go of the modules that the training code brought, in CPython's order: what nobody else holds ends here; then
    those that somebody does hold lose what they hold, the last that was imported first."""
    import signal
    import weakref

    held = []
    for name in [name for name in sys.modules if name not in _names and _root(name) not in _KEPT]:
        module = sys.modules[name]
        if not _is_kept(module):
            del sys.modules[name]
            if issubclass(type(module), ModuleType):  # anything can be put there
                held.append(weakref.ref(module))
        del module
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler) and _root(getattr(handler, "__module__", None)) not in (*_KEPT, "_signal"):
            signal.signal(number, signal.SIG_DFL)
        del handler
    gc.collect()
    if _others_run():
        return  # the interpreter would have stopped daemons before it takes their globals
    for ref in reversed(held):
        alive = ref()
        if alive is not None:
            _empty(alive)
    gc.collect()


def _is_kept(module: object) -> bool:
    if issubclass(type(module), ModuleType) and _root(_namespace(module).get("__name__")) in _KEPT:
        return True
    return id(module) in _before


def _root(name: object) -> str:
    return str(name).partition(".")[0]


def _empty(module: ModuleType) -> None:
    """As CPython does it: private names first."""
    space: dict[str, Any] = _namespace(module)
    names = [name for name in space if isinstance(name, str) and name != "__builtins__"]
    for private in (True, False):
        for name in names:
            if (name.startswith("_") and not name.startswith("__")) == private:
                space[name] = None


def _others_run() -> bool:
    """Whether there are threads of Python beside this one, but for Phalanx's own, which look at no module's globals."""
    threading = sys.modules.get("threading")
    return threading is not None and threading.active_count() > 1


def _flush_files() -> None:
    """At the end, too: what is open then is held by something that outlives the training code, such as torch, a daemon
    thread, or C code."""
    for found in gc.get_objects():
        if issubclass(type(found), _FILES):
            with contextlib.suppress(Exception):
                if not found.closed:
                    found.flush()


def _exit(code: int) -> None:
    _flush_streams()
    if "ctypes" not in sys.modules:  # with torch and numpy it is there
        with contextlib.suppress(ImportError):
            import ctypes  # noqa: F401
    with contextlib.suppress(BaseException):
        _forget_shardings()
    with contextlib.suppress(BaseException):
        libc = sys.modules["ctypes"].CDLL(None)
        libc.fflush(None)
        if _group_on_gpus():
            if code == 0:
                _say(
                    "exit handlers of C libraries were not run, because a process group is still there and CUDA is "
                    "in use; call torch.distributed.destroy_process_group() at the end of the training"
                )
        else:
            libc.exit(code)


def _forget_shardings() -> None:
    """The cache of torch's DTensor has Python objects in memory of the thread, which C's exit would let go of when no
    thread of Python is current any more: that aborts."""
    torch = sys.modules.get("torch")
    if torch is not None and "torch.distributed.tensor" in sys.modules:
        torch._C._clear_DTensor_sharding_propagator_cache()


def _group_on_gpus() -> bool:
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):
        return bool(torch and torch.cuda.is_initialized() and torch.distributed.is_initialized())
    return False


def _mark(_torch: ModuleType) -> None:
    """C runs the handler that was registered last first, so these two end the process before those of torch."""
    import ctypes

    global _marked
    if _marked:
        return
    _marked = True
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit") and hasattr(libc, "fcloseall"):  # glibc
        libc.on_exit(libc._exit, None)  # is given the exit code
        libc.on_exit(libc.fcloseall, None)
