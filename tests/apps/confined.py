"""Runs a command under a seccomp filter: `confined.py COMMAND...`. It may not trace, look into or copy from other
processes, nor make namespaces, rings or keys: what a container may not, and some more. Each call says EPERM."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

# By machine: the audit's number of it, and the calls' own numbers.
REFUSED = {
    # ptrace, process_vm_readv, process_vm_writev, kcmp, perf_event_open, userfaultfd, bpf, unshare, setns, mount,
    # add_key, request_key, keyctl, io_uring_setup, pidfd_getfd, name_to_handle_at, open_by_handle_at
    "x86_64": (
        0xC000003E,
        (101, 310, 311, 312, 298, 323, 321, 272, 308, 165, 248, 249, 250, 425, 438, 303, 304),
    ),
    "aarch64": (
        0xC00000B7,
        (117, 270, 271, 272, 241, 282, 280, 97, 268, 40, 217, 218, 219, 425, 438, 264, 265),
    ),
}

SECCOMP_FILTER, PR_SET_SECCOMP = 2, 22
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, EPERM = 0x7FFF0000, 0x00050001


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def confine() -> None:
    """From now on; the caller must have given up new privileges."""
    machine, calls = REFUSED[platform.machine()]

    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("HBBI", code, yes, no, value)

    steps = [step(LOAD, 4), step(EQUAL, machine, no=len(calls) + 1), step(LOAD, 0)]
    # From each call's step it is as far to the last one as there are calls after it, and the step that allows.
    steps += [step(EQUAL, call, yes=len(calls) - at) for at, call in enumerate(calls)]
    steps += [step(RETURN, ALLOW), step(RETURN, EPERM)]
    program = _Program(len(steps), b"".join(steps))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")


if __name__ == "__main__":
    if platform.machine() in REFUSED:
        confine()
    os.execvp(sys.argv[1], sys.argv[1:])
