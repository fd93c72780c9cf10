"""What one host is like, as plain data: what a task of the doctor's collects on its host. It judges nothing.

It travels to the executors by value and uses the standard library only, so that a host without torch, or without
Phalanx, can be named.

DOCTOR-7 (carries-on): a probe that raises, or doesn't answer in time, is a problem with a name, and the others go on.
DOCTOR-8 (leaves-nothing): files and processes of a probe are gone when it is over.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import resource
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

# In a process of its own: an import of torch that fails, hangs or is killed is the finding, not the end of the task.
_TORCH = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
import torch
found = {"version": torch.__version__, "cuda": torch.version.cuda, "file": torch.__file__}
found["distributed"] = torch.distributed.is_available()
if found["cuda"]:
    found["devices"] = torch.cuda.device_count()
    try:
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    except Exception as problem:
        found["nccl_problem"] = repr(problem)
print("FOUND", json.dumps(found))
"""
# What a guard and its clients ask of the kernel, in a process of its own since it changes what a process is.
_KERNEL = """
import ctypes, json, os, signal, socket
libc = ctypes.CDLL(None, use_errno=True)
def prctl(what, value):
    if libc.prctl(what, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
def pidfd():
    descriptor = os.pidfd_open(os.getpid())
    signal.pidfd_send_signal(descriptor, 0)
def eventfd():
    if libc.eventfd(0, 0) < 0:
        raise OSError(ctypes.get_errno(), "eventfd")
def signalfd():
    mask = ctypes.create_string_buffer(128)
    if libc.signalfd(-1, mask, 0) < 0:
        raise OSError(ctypes.get_errno(), "signalfd")
def children():
    if os.path.exists("/proc/self/task"):
        open(f"/proc/self/task/{os.getpid()}/children").close()
    else:
        raise OSError(2, "/proc is not mounted")
def setsid():
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
        except OSError as problem:
            os._exit(problem.errno)
        os._exit(0)
    # Whoever has it otherwise may wait for nobody, as process 1 of many containers.
    refused = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if refused:
        raise OSError(refused, "setsid")
tries = {
    "subreaper (prctl)": lambda: prctl(36, 1),
    "parent death signal (prctl)": lambda: prctl(1, 0),
    "pidfd_open": pidfd,
    "eventfd": eventfd,
    "signalfd": signalfd,
    "memfd_create": lambda: os.memfd_create("phalanx-doctor"),
    "a socket pair of packets": lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET),
    "setsid": setsid,
    "the children of a process in /proc": children,
}
missing = {}
for name, attempt in tries.items():
    try:
        attempt()
    except Exception as problem:
        missing[name] = str(problem)
print("FOUND", json.dumps(missing))
"""


def measured(probes: dict[str, Callable[[], Any]], seconds: float) -> tuple[dict[str, Any], dict[str, str]]:
    """What each probe found, and the problem of each that raised or was not done in time. They run side by side."""
    found: dict[str, Any] = {}
    problems: dict[str, str] = {}

    def tried(name: str, probe: Callable[[], Any]) -> None:
        try:
            found[name] = probe()
        except BaseException as problem:
            problems[name] = f"{type(problem).__name__}: {problem}"

    threads = {
        name: threading.Thread(target=tried, args=(name, probe), name="phalanx-probe", daemon=True)
        for name, probe in probes.items()
    }
    until = time.monotonic() + seconds
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(0.0, until - time.monotonic()))
    late = {
        name: f"no answer within {seconds:.0f} s" for name in threads if name not in {**found, **problems}
    }
    return dict(found), {**problems, **late}


def machine(folders: list[str], driver: str, seconds: float) -> dict[str, Callable[[], Any]]:
    """The probes of a host that are over at once, by name."""
    return {
        "python": python,
        "packages": packages,
        "jars": jars,
        "names": lambda: names(driver),
        "memory": memory,
        "cpu": cpu,
        "shm": lambda: space("/dev/shm"),
        "disks": lambda: [disk(folder) for folder in dict.fromkeys([*folders, tempfile.gettempdir()])],
        "limits": limits,
        "kernel": lambda: kernel(seconds),
        "guard": guard_program,
    }


def python() -> dict[str, str]:
    """The interpreter and the C library."""
    libc = ""
    with contextlib.suppress(ValueError, OSError):
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
        "glibc": libc.removeprefix("glibc "),
        "machine": platform.machine(),
        "kernel": platform.release(),
    }


def packages() -> dict[str, str]:
    """The version of every package that is installed, the first on the path where there are several."""
    found: dict[str, str] = {}
    for package in importlib.metadata.distributions():
        with contextlib.suppress(Exception):
            name = re.sub(r"[-_.]+", "-", str(package.metadata["Name"])).lower()
            found.setdefault(name, str(package.version))
    return found


def torch(seconds: float) -> dict[str, Any]:
    """What an import of torch says, in a process of its own with this one's path; `error` where it fails."""
    return _in_process(_TORCH, seconds, json.dumps(sys.path))


def kernel(seconds: float) -> dict[str, Any]:
    """What the guard needs and the kernel, or a sandbox, refuses, with the reason; the mode of seccomp."""
    missing = _in_process(_KERNEL, seconds)
    status = _read("/proc/self/status")
    seccomp = re.search(r"^Seccomp:\s*(\d)", status, re.MULTILINE)
    no_new = re.search(r"^NoNewPrivs:\s*(\d)", status, re.MULTILINE)
    namespaces = {}
    for name in ("net", "mnt", "pid", "user", "ipc"):
        with contextlib.suppress(OSError):
            namespaces[name] = os.readlink(f"/proc/self/ns/{name}")
    return {
        "missing": missing,
        "seccomp": int(seccomp[1]) if seccomp else None,
        "no_new_privileges": no_new is not None and no_new[1] == "1",
        "namespaces": namespaces,
    }


def _in_process(program: str, seconds: float, *arguments: str) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {seconds:.0f} s", "late": True}
    for line in done.stdout.splitlines():
        if line.startswith("FOUND "):
            return dict(json.loads(line.removeprefix("FOUND ")))
    said = [line for line in done.stderr.splitlines() if line.strip()]
    ended = f"ended by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return {"error": said[-1][:400] if said else ended}


def jars() -> list[str]:
    """The names of Phalanx's jars that a JVM above this process has open."""
    found: set[str] = set()
    pid = os.getpid()
    for _ in range(8):
        stat = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if len(stat) < 2 or int(stat[1]) <= 1:
            break
        pid = int(stat[1])
        for link in glob.glob(f"/proc/{pid}/fd/*"):
            with contextlib.suppress(OSError):
                name = os.path.basename(os.readlink(link).removesuffix(" (deleted)"))
                if re.fullmatch(r"phalanx-spark_[\w.+-]+\.jar", name):
                    found.add(name)
    return sorted(found)


def addresses_of(name: str) -> list[str]:
    """What the resolver of this host says to a name."""
    return sorted({str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})


def is_own(address: str) -> bool:
    """Whether this host has the address: only then a socket can have it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as taken:
            taken.bind((address, 0))
        return True
    except OSError as problem:
        return problem.errno != errno.EADDRNOTAVAIL


def names(driver: str) -> dict[str, Any]:
    """What this host's own name and the driver's lead to, as this host's resolver says."""
    own = socket.gethostname()
    answer: dict[str, Any] = {"hostname": own, "driver": driver}
    for key, name in (("own", own), ("to_driver", driver)):
        try:
            answer[key] = addresses_of(name)
        except OSError as problem:
            answer[key] = []
            answer[f"{key}_problem"] = str(problem)
    answer["not_own"] = [address for address in answer["own"] if not is_own(address)]
    return answer


def own_address(towards: str, host: str) -> str:
    """The address at which other hosts reach this one, as a node finds it: the one that leads to the driver, else the
    one that Spark's name of this host leads to."""
    for name, want_own in ((towards, False), (host, True)):
        with contextlib.suppress(OSError):
            for family, _, _, _, address in socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM):
                if want_own:
                    if is_own(str(address[0])):
                        return str(address[0])
                    continue
                with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                    probe.connect(address)  # sends nothing
                    return str(probe.getsockname()[0])
    return "127.0.0.1"


def interface(address: str) -> dict[str, Any]:
    """The interface that has this address, with its MTU and speed; the name is empty where none has it."""
    found = next((name for own, name in _interfaces() if own == address), "")
    if not found and address.startswith("127."):
        found = "lo"
    answer: dict[str, Any] = {"name": found, "address": address}
    for key in ("mtu", "speed"):
        with contextlib.suppress(OSError, ValueError), open(f"/sys/class/net/{found}/{key}") as file:
            answer[key] = int(file.read())
    if found and "mtu" not in answer:  # /sys may be that of another network namespace
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            asked = fcntl.ioctl(
                any_socket, 0x8921, struct.pack("16sI12x", found.encode()[:15], 0)
            )  # SIOCGIFMTU
            answer["mtu"] = struct.unpack("16sI12x", asked)[1]
    return answer


def addresses() -> list[str]:
    """All addresses of this host."""
    return [address for address, _ in _interfaces()]


def _interfaces() -> list[tuple[str, str]]:
    """Each address of this host with its interface."""
    found = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        import array

        space_for = array.array("B", bytes(40 * 256))
        where, length = space_for.buffer_info()
        told = fcntl.ioctl(any_socket, 0x8912, struct.pack("iL", length, where))  # SIOCGIFCONF
        used = struct.unpack("iL", told)[0]
        entries = space_for.tobytes()[:used]
        for at in range(0, used, 40):
            name = entries[at : at + 16].split(b"\0")[0].decode(errors="replace")
            found.append((socket.inet_ntoa(entries[at + 20 : at + 24]), name))
    for line in _read("/proc/net/if_inet6").splitlines():
        digits, *_, name = line.split()
        found.append((socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)), name))
    return found


def memory() -> dict[str, int | None]:
    """Bytes: of the host, what of it is free to take, and the smallest limit of the control groups around this."""
    values = dict(re.findall(r"^(\w+):\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE))
    return {
        "total": int(values.get("MemTotal", 0)) * 1024,
        "available": int(values.get("MemAvailable", 0)) * 1024,
        "limit": _smallest("memory", ("memory.max", "memory.limit_in_bytes")),
    }


def cpu() -> dict[str, Any]:
    """The cores that this process may use, the quota of the control groups around it in cores, and how many passes of
    some arithmetic a core does in a second at its best."""
    quota = None
    for folder in _control_groups("cpu"):
        words = _read(f"{folder}/cpu.max").split()
        if not words and (whole := _read(f"{folder}/cpu.cfs_quota_us").strip()):
            words = [whole, _read(f"{folder}/cpu.cfs_period_us").strip()]
        if len(words) == 2 and words[0].isdigit() and int(words[1]) > 0:
            cores = int(words[0]) / int(words[1])
            quota = cores if quota is None else min(quota, cores)
    best = 1e9
    for _ in range(20):
        # By this thread's own time: whoever else computes here is no property of the host.
        began = time.thread_time()
        sum(number * number for number in range(10_000))
        best = min(best, time.thread_time() - began)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "quota": quota,
        "passes": 1 / best,
        "load": os.getloadavg()[0],
    }


def space(folder: str) -> dict[str, Any]:
    """Bytes and files that fit into a file system."""
    try:
        told = os.statvfs(folder)
    except OSError as problem:
        return {"folder": folder, "problem": str(problem)}
    return {
        "folder": folder,
        "total": told.f_blocks * told.f_frsize,
        "free": told.f_bavail * told.f_frsize,
        "files": told.f_files,
        "files_free": told.f_favail,
    }


def disk(folder: str) -> dict[str, Any]:
    """As `space`, and whether a file can be written there and a program of there be run."""
    answer = space(folder)
    if "problem" in answer:
        return answer
    try:
        place = tempfile.mkdtemp(prefix="phalanx-doctor-", dir=folder)
    except OSError as problem:
        return {**answer, "problem": _said(problem), "errno": problem.errno}
    try:
        path = os.path.join(place, "program")
        with open(path, "wb") as file:
            file.write(b"#!/bin/sh\nexit 0\n" + b"#" * (1 << 16) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(path, 0o700)
        answer["runs"] = _runs(path)
    except OSError as problem:
        answer |= {"problem": _said(problem), "errno": problem.errno}
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return answer


def _runs(path: str) -> bool:
    for _ in range(20):
        try:
            return subprocess.run([path], stdin=subprocess.DEVNULL, timeout=10).returncode == 0
        except PermissionError:
            return False
        except OSError as problem:
            if problem.errno != errno.ETXTBSY:  # a process that was just forked still has the file open
                raise
            time.sleep(0.02)
    return False


def guard_program() -> dict[str, Any]:
    """Where this Python has Phalanx, with "" for nowhere, and whether the guard that comes with it can be run."""
    found = importlib.util.find_spec("phalanx")
    if found is None or not found.submodule_search_locations:
        return {"path": ""}
    path = os.path.join(next(iter(found.submodule_search_locations)), "bin", "phalanx-guard")
    return {"path": path, "there": os.path.isfile(path), "runs": os.access(path, os.X_OK)}


def limits() -> dict[str, Any]:
    """What this process may have: descriptors, processes, address space, locked memory."""

    def of(which: int) -> int | None:
        soft = resource.getrlimit(which)[0]
        return None if soft == resource.RLIM_INFINITY else soft

    return {
        "descriptors": of(resource.RLIMIT_NOFILE),
        "descriptors_hard": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "processes": of(resource.RLIMIT_NPROC),
        "address_space": of(resource.RLIMIT_AS),
        "address_space_of_spark": os.environ.get("PYSPARK_EXECUTOR_MEMORY_MB"),
        "locked": of(resource.RLIMIT_MEMLOCK),
        "pids": _smallest("pids", ("pids.max",)),
    }


def gpus(seconds: float) -> dict[str, Any]:
    """The GPUs of this host as `nvidia-smi` tells them, and how they are connected."""
    devices = sorted(glob.glob("/dev/nvidia[0-9]*"))
    program = shutil.which("nvidia-smi")
    answer: dict[str, Any] = {
        "devices": devices,
        "gpus": [],
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
    if program is None:
        return answer
    fields = ["index", "name", "uuid", "driver_version", "memory.total", "memory.used", "compute_mode"]
    try:
        query = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
        told = subprocess.run(query, capture_output=True, text=True, timeout=seconds)
        if told.returncode != 0:
            return {**answer, "problem": (told.stdout + told.stderr).strip()[:400]}
        for line in told.stdout.splitlines():
            values = [value.strip() for value in line.split(",")]
            answer["gpus"].append(dict(zip(fields, values, strict=False)))
        topology = subprocess.run([program, "topo", "-m"], capture_output=True, text=True, timeout=seconds)
        answer["topology"] = re.sub(r"\x1b\[[\d;]*m", "", topology.stdout)[:8000]
    except (OSError, subprocess.TimeoutExpired) as problem:
        answer["problem"] = str(problem)
    return answer


def _control_groups(controller: str) -> list[str]:
    """The folders of the control groups around this process, from the inmost outwards, as far as they are mounted."""
    found = []
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root = "/sys/fs/cgroup" if os.path.exists("/sys/fs/cgroup/cgroup.controllers") else ""
            root = root or "/sys/fs/cgroup/unified"
        elif controller in controllers.split(","):
            root = f"/sys/fs/cgroup/{controllers}"
            root = root if os.path.isdir(root) else f"/sys/fs/cgroup/{controller}"
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        found += ["/".join([root, *parts[:depth]]) for depth in range(len(parts), -1, -1)]
    return [folder for folder in found if os.path.isdir(folder)]


def _smallest(controller: str, files: tuple[str, ...]) -> int | None:
    found = []
    for folder in _control_groups(controller):
        for file in files:
            text = _read(f"{folder}/{file}").strip()
            if text.isdigit() and int(text) < 1 << 60:  # more is a word for no limit
                found.append(int(text))
    return min(found, default=None)


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _said(problem: OSError) -> str:
    return problem.strerror or str(problem)
