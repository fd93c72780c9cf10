#!/usr/bin/env python3
"""Runs Rust tests, of the packages that `cargo test` takes by the same options: two programs of tests at a time, since
most tests wait for a time to pass.

cargo runs one program after the other, and each keeps a processor or two for as long as its longest test waits. What
fails, if it is no more than ten tests, runs once more when nothing else does. What fails then, fails; what passes
then is named at the end: a defect, of the test at the least, that depends on what else the machine does. It runs as
a part of the tests: scripts/part.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

AT_A_TIME = 2
MOST_AGAIN = 10
WITHIN_S = 600
# They take longest, so they begin first.
LONGEST_FIRST = (
    "operations",
    "phalanx_collective",
    "processes",
    "scale_time",
    "death",
    "networks",
    "outages",
)


@dataclass(frozen=True)
class Program:
    """A program of tests that cargo has built."""

    name: str
    path: str
    folder: str

    def run(self, *arguments: str) -> tuple[int, str]:
        """Its exit status, and what it printed; it runs where cargo would run it."""
        command = [self.path, "--quiet", *arguments]
        env = {**os.environ, "CARGO_MANIFEST_DIR": self.folder}
        # To a file: a process that a test left behind keeps no pipe open that is read to its end.
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                process.wait(WITHIN_S)
                late = ""
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                late = f"\n{self.name} was not over within {WITHIN_S} s\n"
            output.seek(0)
            printed = output.read().decode(errors="replace") + late
        return process.returncode, printed


def built(packages: list[str]) -> list[Program]:
    """What there is to run; it is compiled first, if it is not there."""
    command = ["cargo", "test", "--quiet", *packages, "--no-run", "--message-format=json-render-diagnostics"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.returncode)
    programs = []
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            folder = str(Path(message["manifest_path"]).parent)
            programs.append(Program(message["target"]["name"], message["executable"], folder))
    order = {name: turn for turn, name in enumerate(LONGEST_FIRST)}
    return sorted(programs, key=lambda program: order.get(program.name, len(order)))


def passed(printed: str) -> int:
    """How many tests a program says that passed."""
    return sum(int(count) for count in re.findall(r"^test result: .* (\d+) passed;", printed, re.MULTILINE))


def failed(printed: str) -> list[str]:
    """The tests that a program names as failed."""
    _, _, listed = printed.rpartition("\nfailures:\n")
    return re.findall(r"^    (\S+)$", listed.partition("\ntest result")[0], re.MULTILINE)


def tell(what: str, text: str) -> None:
    """Leaves this for the table at the end of all tests."""
    Path(f"{os.environ['PART']}.{what}").write_text(f"{text}\n")


def main() -> None:
    programs = built(sys.argv[1:])
    began = time.monotonic()
    with ThreadPoolExecutor(AT_A_TIME) as several:
        ended = list(several.map(Program.run, programs))
    # A program that names none has crashed or hung: it is to run again whole.
    again = [
        (program, name)
        for program, (status, printed) in zip(programs, ended, strict=True)
        if status != 0
        for name in failed(printed) or [""]
    ]
    for program, (status, printed) in zip(programs, ended, strict=True):
        if status != 0:
            print(f"{program.name}: exit status {status}\n{printed}", flush=True)
    tests = sum(passed(printed) for _, printed in ended)
    print(f"{tests} tests of {len(programs)} programs passed in {time.monotonic() - began:.0f} s", flush=True)
    tell("counts", str(tests))
    names = "\n".join(f"  {program.name} {name}" for program, name in again)
    if len(again) > MOST_AGAIN:
        sys.exit(f"Failed:\n{names}")
    if again:
        print(f"Failed once, and run once more alone:\n{names}", flush=True)
    lasting = []
    for program, name in again:
        status, printed = program.run(*(["--exact", name] if name else []))
        # A name that no test has would pass with none.
        if status != 0 or not passed(printed):
            print(f"{program.name}: exit status {status}\n{printed}", flush=True)
            lasting.append(f"  {program.name} {name}")
    if lasting:
        sys.exit("Failed:\n" + "\n".join(lasting))
    if again:
        tell("second", names)


if __name__ == "__main__":
    main()
