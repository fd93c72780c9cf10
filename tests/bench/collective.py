"""All-reduce without torch: the Rust API beside Open MPI, Intel MPI, oneCCL and memcpy, by turns.

    python tests/bench/collective.py [--quick] [--reps N] [--oneccl PREFIX] [--plot docs/collectives.svg]

Two and four ranks, 4 KiB to 64 MiB, float32 and bfloat16 (which MPI doesn't have). Rank r is bound to processor r,
modulo how many there are (but oneCCL's, which binds its own threads), and runs with the highest priority that we may
ask for. The implementations take turns, run by run; a value is the median of one run. `latency`: one call after a
barrier, of the slowest rank. `loop`: calls back to back. `cpu`: processor time, user and system, of such a call on all
ranks together, waiting included. memcpy copies the message once in one thread, or in as many as there are ranks: no
all-reduce, a yardstick.

oneCCL is left out where there are more ranks than processors: it spins, and takes up to half a second for 4 KiB.
Peers that aren't installed are left out with a word. Open MPI: the package openmpi-bin and libopenmpi-dev. oneCCL and
Intel MPI: `pip install oneccl-devel impi-devel` into an environment, whose prefix is given. Their sources: peers/.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import plot
from common import ROOT, Report, note, short

SIZES = {"4 KiB": 1 << 12, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "16 MiB": 1 << 24, "64 MiB": 1 << 26}
PEERS = Path(__file__).resolve().parent / "peers"
PROCESSORS = sorted(os.sched_getaffinity(0))
FIRST = ["nice", "-n", "-20"] if os.geteuid() == 0 else []
# Binds a rank that an MPI launcher starts, by the number that the launcher gives it.
BOUND = f'set -- {" ".join(map(str, PROCESSORS))} "$@"; n={len(PROCESSORS)}; ' + (
    'r=$((${OMPI_COMM_WORLD_RANK:-$PMI_RANK} % n + 1)); eval "p=\\${$r}"; shift $n; exec taskset -c $p "$@"'
)
METRICS = ("latency", "loop", "cpu")
Rows = Iterable[tuple[int, str, float]]
Run = Callable[[int, str, float, list[int]], Rows]


def phalanx(program: Path) -> Run:
    def run(ranks: int, dtype: str, seconds: float, sizes: list[int]) -> Rows:
        with tempfile.TemporaryDirectory() as directory:
            command = [str(program), "--dtype", dtype, "--seconds", str(seconds), "--world", str(ranks)]
            command += ["--bytes", ",".join(map(str, sizes)), "--directory", directory]
            processes = []
            for rank in range(ranks):
                where = str(PROCESSORS[rank % len(PROCESSORS)])
                bound = [*FIRST, "taskset", "-c", where, *command, "--rank", str(rank)]
                processes.append(subprocess.Popen(bound, stdout=subprocess.PIPE, text=True))
            outputs = [process.communicate(timeout=600)[0] for process in processes]
        assert all(process.returncode == 0 for process in processes), "a rank failed"
        for line in outputs[0].splitlines():
            row = json.loads(line)
            # There, processor time is of one rank.
            value = row["median"] * (ranks if row["metric"] == "cpu" else 1)
            yield int(re.findall(r"(\d+) bytes", row["case"])[0]), row["metric"], value

    return run


def memcpy(program: Path) -> Run:
    def run(ranks: int, dtype: str, seconds: float, sizes: list[int]) -> Rows:
        command = [*FIRST, str(program), "--ranks", "", "--seconds", str(seconds / 4)]
        command += ["--bytes", ",".join(map(str, sizes))]
        for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
            row = json.loads(line)
            if row["case"].startswith(f"{min(ranks, 2)} "):
                yield int(re.findall(r"(\d+) bytes", row["case"])[0]), "latency", row["median"]

    return run


def peer(launcher: list[str], program: Path, environment: dict[str, str], *, bound: bool = True) -> Run:
    def run(ranks: int, dtype: str, seconds: float, sizes: list[int]) -> Rows:
        binding = ["sh", "-c", BOUND, "sh"] if bound else []
        command = [*FIRST, *launcher, "-n", str(ranks), *binding, str(program), dtype]
        command += [str(seconds), *map(str, sizes)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=900, env=os.environ | environment
        )
        if done.returncode:
            note(f"{program.name} failed: {done.stderr.strip()[-300:]}")
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                row = json.loads(line)
                yield from ((row["bytes"], metric, row[metric]) for metric in METRICS)

    return run


def built(command: list[str], source: str, target: Path) -> Path | None:
    """Compiles a peer; None, with a word, where that can't be done."""
    done = subprocess.run(
        [*command, "-O3", "-march=native", "-o", target, PEERS / source], capture_output=True
    )
    if done.returncode == 0:
        return target
    note(f"left out: {target.name}: {done.stderr.decode().strip()[-300:]}")
    return None


def peers(directory: Path, oneccl: Path | None) -> dict[str, Run]:
    found: dict[str, Run] = {}
    if shutil.which("mpicxx") and shutil.which("mpirun"):
        if program := built(["mpicxx"], "mpi.cpp", directory / "openmpi"):
            launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
            found["openmpi"] = peer(launcher, program, {})
    else:
        note("left out: openmpi: there is no mpicxx or mpirun (Debian: openmpi-bin, libopenmpi-dev)")
    if oneccl is None:
        note("left out: oneccl, intel-mpi: no --oneccl PREFIX (pip install oneccl-devel impi-devel)")
        return found
    library, fabric = oneccl / "lib", oneccl / "lib" / "libfabric"
    environment = {
        "LD_LIBRARY_PATH": f"{library}:{fabric}",
        "FI_PROVIDER_PATH": str(fabric),
        "I_MPI_ROOT": str(oneccl),
        "I_MPI_FABRICS": "shm",
        "CCL_ROOT": str(oneccl),
        "CCL_CONFIGURATION": "cpu",
        "CCL_ATL_TRANSPORT": "mpi",
    }
    flags = [f"-I{oneccl}/include", f"-L{library}", f"-Wl,-rpath-link,{library}"]
    hydra = [str(oneccl / "bin" / "mpiexec.hydra")]
    for name, source, link in (("intel-mpi", "mpi.cpp", []), ("oneccl", "oneccl.cpp", ["-lccl"])):
        # Libraries after what needs them.
        command = ["g++", "-Wl,--no-as-needed", *flags, *link, "-lmpi"]
        if program := built(command, source, directory / name):
            is_bound = name != "oneccl"  # it has a thread of its own that spins, and binds that
            pinning = {"I_MPI_PIN": "0"} if is_bound else {}
            found[name] = peer(hydra, program, environment | pinning, bound=is_bound)
    return found


def bench_program() -> Path:
    command = ["cargo", "bench", "-p", "phalanx-collective", "--bench", "all_reduce", "--no-run", "-q"]
    done = subprocess.run(
        [*command, "--message-format=json"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    messages = map(json.loads, done.stdout.splitlines())
    return Path(next(message["executable"] for message in messages if message.get("executable")))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="once and shortly; ends within a minute or so")
    parser.add_argument("--reps", type=int, default=5, help="turns of each")
    parser.add_argument("--oneccl", type=Path, help="where oneCCL and Intel MPI are installed")
    parser.add_argument("--plot", type=Path, help="an SVG to write")
    options = parser.parse_args()
    report = Report("collective")
    program = bench_program()
    reps, seconds = (1, 0.05) if options.quick else (options.reps, 0.3)
    names = {count: name for name, count in SIZES.items()}
    with tempfile.TemporaryDirectory() as directory:
        runs = {
            "phalanx": phalanx(program),
            **peers(Path(directory), options.oneccl),
            "memcpy": memcpy(program),
        }
        for ranks in (2, 4):
            for dtype in ("float32", "bfloat16"):
                able = [impl for impl in runs if _is_able(impl, ranks, dtype)]
                gathered: dict[tuple[str, int, str], list[float]] = {}
                for _ in range(reps):
                    for impl in able:
                        for count, metric, value in runs[impl](ranks, dtype, seconds, list(SIZES.values())):
                            gathered.setdefault((impl, count, metric), []).append(value)
                for (impl, count, metric), values in gathered.items():
                    report.add(impl, f"{ranks} ranks, {dtype}, {names[count]}", metric, "us", values)
    report.table()
    _bytes(report)
    if options.plot:
        _plot(report, options.plot)


def _is_able(impl: str, ranks: int, dtype: str) -> bool:
    if impl == "oneccl":
        return ranks <= len(PROCESSORS)
    return dtype == "float32" or impl not in ("openmpi", "intel-mpi")


def _bytes(report: Report) -> None:
    """bfloat16 beside float32, a byte."""
    print("\nbfloat16 / float32, time for the same bytes: of the medians, of the minima")
    rows = {(row["impl"], row["case"]): row for row in report.rows if row["metric"] == "latency"}
    for (impl, case), row in rows.items():
        single = rows.get((impl, str(case).replace("bfloat16", "float32")))
        if "bfloat16" in str(case) and impl != "memcpy" and single:
            ratios = [float(str(row[of])) / float(str(single[of])) for of in ("median", "min")]
            print(f"{case}  {impl}  {short(ratios[0])}  {short(ratios[1])}")


def _plot(report: Report, path: Path) -> None:
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in report.rows:
        if row["metric"] == "latency":
            case, size = str(row["case"]).rsplit(", ", 1)
            gigabytes = SIZES[size] / float(str(row["median"])) / 1e3
            panels.setdefault(case, {}).setdefault(str(row["impl"]), []).append((SIZES[size], gigabytes))
    ticks = {name.replace("iB", ""): float(count) for name, count in SIZES.items()}
    plot.write(path, panels, ticks, "GB/s: bytes of the message / time of a call")


if __name__ == "__main__":
    main()
