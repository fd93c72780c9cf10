"""A warm pool: `python -m phalanx.pool`, started by a supervisor below a guard of its own.

It imports what `PHALANX_POOL` lists and then only waits, on the socket that is descriptor 3, where hosts connect. For
each job it is sent the control socket of a new guard and a pidfd of the host, and forks a process that becomes this
guard; the guard forks the ranks.

POOL-6: the pool imports and never computes. At a fork it has one thread, has not touched CUDA, and its modules are as
they are on disk; else it says so and ends. POOL-7: a rank is to its user a process that was just started: session,
descriptors, environment, working directory, signal handlers, `__main__`, generators of random numbers, threads of
numerical libraries. What it shares with the other ranks is the seed of `hash`, where PYTHONHASHSEED sets none.
POOL-8: a rank whose modules would be others than the pool's starts anew, as a program.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time

from . import _native, spark_files
from .fresh import Restorer
from .launcher import Launcher
from .payload import Payload, merged_path
from .rank import main as run_rank
from .shadows import Imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_SOCKET = 3
_NAME = "phalanx-pool"
# Where a guard has its control socket and the pidfd of its host; /dev/null is between.
_CONTROL, _NULL, _HOST = 0, 3, 4
# A peer's process, user and group.
_UCRED = "iII"


def main() -> NoReturn:
    """Serves until it is idle for too long or its host has gone; in a rank, runs the rank."""
    before = {name for name in sys.modules if not name.startswith("torch")}
    told = json.loads(os.environ.pop("PHALANX_POOL"))
    launcher = Launcher(told["env"])
    restorer = Restorer()
    listener = socket.socket(fileno=_SOCKET)
    listener.set_inheritable(False)
    _rename(_NAME)
    missing = _import(told["imports"])
    pool = _Pool(listener, Imported(before), missing, told["idle_ms"])
    problem = pool.unfit() or _fork_problem()
    if problem is not None:
        pool.refuse(problem)
    _silence()
    gc.collect()
    gc.freeze()
    _native.use_huge_pages()
    program, args, given = pool.serve()
    # From here on this is a rank.
    env = launcher.applied(dict(given))
    restorer.restore(dict(given) if env is None else env)
    if env is None:
        _start_anew(program, args, "the script that starts Python sets a variable from others")
    sys.orig_argv[:] = [program, *args]
    why = None
    with contextlib.suppress(Exception):  # a payload that can't be read is the rank's to tell
        why = pool.imported.shadowed(_path_to_be())
    if why is not None:
        _start_anew(program, args, why)
    run_rank()


def _import(names: list[str]) -> list[str]:
    """Imports what there is, with the path of a rank; what there is not, in sentences."""
    entries = spark_files.entries(os.environ)
    sys.path[:0] = entries
    missing = []
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as problem:  # whatever a module does, the others are of use
            if not isinstance(problem, ModuleNotFoundError) or problem.name != name.partition(".")[0]:
                missing.append(f"{name}: {type(problem).__name__}: {problem}")
            else:
                missing.append(f"{name}, which is not installed")
    for entry in entries:
        with contextlib.suppress(ValueError):
            sys.path.remove(entry)
    return missing


class _Pool:
    """The pool's ends of the sockets. A host is a connection, until it says that it leaves or is gone."""

    def __init__(self, listener: socket.socket, imported: Imported, missing: list[str], idle_ms: int) -> None:
        self.imported = imported
        self._missing = missing
        self._listener = listener
        self._hosts: dict[int, socket.socket] = {}
        self._idle_ms = idle_ms
        self._guards: dict[int, int] = {}
        """The pidfd of each guard that runs, and its process id."""

    def serve(self) -> tuple[str, list[str], list[tuple[str, str]]]:
        """Forks a guard for each request. Returns in ranks only, with what each is to be."""
        while True:
            host = self._next_host()
            request, fds = self._request(host)
            if request is None:
                continue
            self._idle_ms = request["idle_ms"]
            problem = self.unfit()
            if problem is not None:
                self.refuse(problem)
            try:
                pid = os.fork()
            except OSError as error:
                self.refuse(f"it can't fork: {error}")
            if pid == 0:
                for other in (self._listener, *self._hosts.values()):
                    other.detach()  # the number is another file's from here on
                launch = _guard(request["grace_ms"], *fds)
                if launch is None:
                    os._exit(0)
                return launch
            for fd in fds:
                os.close(fd)
            pidfd = os.pidfd_open(pid)
            self._guards[pidfd] = pid
            _say(host, {"forked": {"pid": pid}}, pidfd)

    def refuse(self, why: str) -> NoReturn:
        """Ends the process, and tells all hosts why, those that wait for it to be ready, too."""
        self._listener.setblocking(False)
        with contextlib.suppress(OSError):
            while True:
                self._accept(None)
        for host in self._hosts.values():
            _say(host, {"unfit": why})
        os._exit(0)

    def _accept(self, word: dict[str, Any] | None) -> None:
        """Takes in the next host, and says `word` to it. A user has pools of their own."""
        host, _ = self._listener.accept()
        credentials = host.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(_UCRED))
        _, user, _ = struct.unpack(_UCRED, credentials)
        if user != os.getuid():
            host.close()
            return
        self._hosts[host.fileno()] = host
        if word is not None:
            _say(host, word)

    def _request(self, host: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
        """What a host asks for, with its descriptors; None if it leaves or has gone. Guards end by themselves."""
        try:
            text, fds, _, _ = socket.recv_fds(host, 4096, 2)
        except OSError:
            text, fds = b"", []
        request = json.loads(text) if text else None
        if isinstance(request, dict):
            asked: dict[str, Any] = request["guard"]
            return asked, fds
        del self._hosts[host.fileno()]
        host.close()
        if request == "leave" and not self._hosts and not self._guards:
            os._exit(0)
        return None, []

    def _next_host(self) -> socket.socket:
        """Waits for one that has something. Ends the process when none has for too long while no guard runs."""
        idle_until = time.monotonic() + self._idle_ms / 1000
        while True:
            poll = select.poll()
            for fd in (self._listener.fileno(), *self._hosts, *self._guards):
                poll.register(fd, select.POLLIN)
            left_ms = max(0.0, idle_until - time.monotonic()) * 1000
            ready = [fd for fd, _ in poll.poll(None if self._guards else left_ms)]
            for fd in ready:
                pid = self._guards.pop(fd, None)
                if pid is not None:
                    os.close(fd)
                    os.waitpid(pid, 0)
                    idle_until = time.monotonic() + self._idle_ms / 1000
            if self._listener.fileno() in ready:
                with contextlib.suppress(OSError):  # one that has gone already
                    self._accept({"ready": {"pid": os.getpid(), "missing": self._missing}})
            for fd in ready:
                if fd in self._hosts:
                    return self._hosts[fd]
            if not self._guards and time.monotonic() >= idle_until:
                os._exit(0)

    def unfit(self) -> str | None:
        """Why this process can't be forked from, in a sentence; None if it can."""
        threads = os.listdir("/proc/self/task")
        if len(threads) > 1:
            names = ", ".join(sorted(_thread_name(t) for t in threads if t != str(os.getpid())))
            return f"something that it imported started a thread ({names})"
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            return "something that it imported initialized CUDA"
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia"):
                    return "something that it imported opened a GPU"
        changed = self.imported.changed()
        return None if changed is None else f"{changed} has changed since it was imported"


def _say(host: socket.socket, message: dict[str, Any], *fds: int) -> None:
    """Answers a host; one that has gone hears nothing."""
    data = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    with contextlib.suppress(OSError):
        host.sendmsg([json.dumps(message).encode()], data)


def _guard(grace_ms: int, control: int, host: int) -> tuple[str, list[str], list[tuple[str, str]]] | None:
    """Makes this process a guard; returns None when it is over, and in the ranks that it forks what each is to be."""
    null = os.open(os.devnull, os.O_RDWR)
    # numbers that none of the places has
    control, host, null = (_at_least(fd, _HOST + 1) for fd in (control, host, null))
    os.dup2(control, _CONTROL)
    for fd in range(_CONTROL + 1, _NULL + 1):
        os.dup2(null, fd)
    os.dup2(host, _HOST)
    return _native.serve_guard(grace_ms, os.fork)


def _at_least(fd: int, lowest: int) -> int:
    import fcntl

    return fd if fd >= lowest else fcntl.fcntl(fd, fcntl.F_DUPFD, lowest)


def _fork_problem() -> str | None:
    """Why a fork of this process could not use CUDA, or can't be made; found out by making one."""
    torch = sys.modules.get("torch")
    try:
        pid = os.fork()
    except OSError as error:
        return f"it can't fork: {error}"
    if pid == 0:
        bad = True
        with contextlib.suppress(BaseException):
            bad = torch is not None and bool(torch.cuda._is_in_bad_fork())
        os._exit(1 if bad else 0)
    _, status = os.waitpid(pid, 0)
    return None if status == 0 else "something that it imported asked CUDA for devices"


def _path_to_be() -> list[str]:
    """The `sys.path` that this rank will have."""
    payload = Payload(os.environ["PHALANX_PAYLOAD"])
    path = merged_path([*spark_files.entries(os.environ), *sys.path], payload.sys_path)
    return [os.path.dirname(payload.file_path), *path] if payload.kind == "file" else path


def _start_anew(program: str, args: list[str], why: str) -> NoReturn:
    """Makes this rank the program that a cold one is from the start."""
    with contextlib.suppress(OSError):
        os.write(_SOCKET, json.dumps({"cold": why}).encode() + b"\n")
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(program, [program, *args], os.environ)


def _rename(name: str) -> None:
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


def _thread_name(task: str) -> str:
    try:
        with open(f"/proc/self/task/{task}/comm") as file:
            return file.read().strip()
    except OSError:
        return "one that has ended"


def _silence() -> None:
    """Nothing is to be printed from here on, nor kept in a buffer for every rank to print."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
