"""A program that leaves open what a program may leave open, each in its own way, in the folder that it is given."""

from __future__ import annotations

import zipfile
from pathlib import Path

PROGRAM = """
import ctypes, gc, os, sys, zipfile
gc.disable()  # of a file in a cycle it closes the descriptor first
FOLDER = sys.argv[1]
def new(name): return open(os.path.join(FOLDER, name), "w")

top_level = new("top-level")
top_level.write("kept")

class Closes:
    def __del__(self, open=open, path=os.path.join(FOLDER, "finalizer")):
        with open(path, "w") as file:
            file.write("kept")
closes = Closes()

archive = zipfile.ZipFile(os.path.join(FOLDER, "archive"), "w")
archive.writestr("member", "kept")

sys.path.insert(0, FOLDER)
with open(os.path.join(FOLDER, "of_a_module.py"), "w") as file:
    file.write("import sys; log = open(sys.argv[1] + '/module', 'w'); log.write('kept')")
import of_a_module

import signal
def handler(*_): held.flush()
held = new("held-by-the-system")
held.write("kept")
signal.signal(signal.SIGUSR1, handler)

sys.stdout.write("no end of line")
sys.stdout = new("stdout")
print("kept", end="")

libc = ctypes.CDLL(None)
libc.fopen.restype = libc.strdup.restype = ctypes.c_void_p
stream = libc.fopen(os.path.join(FOLDER, "c-stream").encode(), b"w")
libc.fputs(b"kept", ctypes.c_void_p(stream))
if len(sys.argv) > 2:
    import torch
# Called with the exit code and its argument: a formatted print to descriptor 0.
os.dup2(os.open(os.path.join(FOLDER, "c-handler"), os.O_WRONLY | os.O_CREAT), 0)
libc.on_exit(libc.dprintf, ctypes.c_void_p(libc.strdup(b"kept")))

class Cycle:
    def __init__(self):
        self.me, self.log = self, new("cycle")
        self.log.write("kept")
Cycle()
"""


NAMES = ("top-level", "cycle", "finalizer", "module", "held-by-the-system", "stdout", "c-stream", "c-handler")


def check(folder: Path) -> None:
    """All of it was written."""
    assert {name: (folder / name).read_text() for name in NAMES} == dict.fromkeys(NAMES, "kept"), "RANK-1"
    assert zipfile.ZipFile(folder / "archive").read("member") == b"kept"
