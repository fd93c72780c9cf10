"""The command `phalanx run`: a training file on this host, in the place of torchrun, without Spark.

    phalanx run train.py --nproc 2 [flags] [args of the file]

LAUNCH-1 (torchruns-flags): a flag that torchrun has too has its name here, in both spellings (`--nproc-per-node`,
`--nproc_per_node`), its meaning, and its variable (`PET_NPROC_PER_NODE`). Source: torch.distributed.run.
LAUNCH-2 (first-cause): the exit code is that of the rank that failed first: its own, or 128 and its signal's number.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..errors import TrainingError
from ..options import Options
from ..request import preflight
from ..request.payload import file_payload, module_payload
from ..request.settings import ANY_FAILURE
from ..request.train_object import Module

if TYPE_CHECKING:
    from ..run.run import Run

_ELSEWHERE = (
    "phalanx run trains on one host. For several hosts use Spark (phalanx submit, or "
    "TorchDistributor(num_processes=..., local_mode=False)) or torchrun"
)


def main(argv: Sequence[str]) -> int:
    """Runs the training of this command line; returns the exit code, which is 2 for one that can't be run."""
    from .local import local_run, settings_of

    options = _parser().parse_args(argv)
    try:
        _check_one_host(options)
        ranks, use_gpu = _ranks(options.nproc_per_node, options.use_gpu)
        program, payload = _program(options)
        run = local_run(
            program,
            payload,
            ranks=ranks,
            use_gpu=use_gpu,
            settings=settings_of(_conf(options), _given(options)),
            options=Options(),
        )
    except (OSError, ValueError, TypeError, RuntimeError) as problem:
        print(f"phalanx run: {problem}", file=sys.stderr)
        return 2
    return _driven(run, options.log_dir)


def _driven(run: Run, log_dir: str | None) -> int:
    with _Ended(run) as ended:
        try:
            run.drive()
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        except TrainingError as error:
            if ended.by is not None:
                return 128 + ended.by
            print(f"phalanx run: {_with_its_log(error, log_dir)}", file=sys.stderr)
            return exit_code_of(error)
    return 0


class _Ended:
    """SIGTERM and SIGHUP end the run, as Ctrl-C does, as long as its block lasts."""

    def __init__(self, run: Run) -> None:
        self.by: int | None = None
        """Which of them came."""
        self._run = run
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Ended:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:  # under nohup it is ignored
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if self.by is None:
            self.by = number
            # The main thread may hold the lock that this takes.
            reason = f"ended by {signal.Signals(number).name}"
            threading.Thread(target=self._run.cancel, args=(reason,), name="phalanx-end", daemon=True).start()


def _with_its_log(error: TrainingError, log_dir: str | None) -> str:
    """The failure as text, with where the failed rank's output stays: this process's own folder ends with it."""
    folder, name = os.path.split(error.log_path)
    job = os.path.basename(folder)
    if not name:
        return str(error)
    if log_dir is not None:
        kept = os.path.join(os.path.abspath(log_dir), job, name)
        return str(error).replace(error.log_path, kept) if os.path.exists(kept) else str(error)
    kept = os.path.join(tempfile.gettempdir(), f"{job}-{name}")
    try:
        with open(error.log_path, "rb") as log, open(kept, "xb", opener=_for_its_owner) as copy:
            shutil.copyfileobj(log, copy)
    except OSError as problem:  # the cause is what has to be told, whether there is room for this or not
        return f"{error}\n\nIts whole output was not kept: {problem}"
    return str(error).replace(error.log_path, kept)


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def exit_code_of(error: TrainingError) -> int:
    """The exit code of the rank that failed first; 1 where no rank's process ended with one."""
    if error.signal is not None:
        return 128 + error.signal
    return error.exit_code or 1


def _check_one_host(options: argparse.Namespace) -> None:
    """Raises `ValueError` for flags that mean several hosts."""
    if options.nnodes not in ("1", "1:1"):
        raise ValueError(f"--nnodes is {options.nnodes}. {_ELSEWHERE}")
    if options.node_rank != 0:
        raise ValueError(f"--node-rank is {options.node_rank}. {_ELSEWHERE}")
    for flag, address in (("--rdzv-endpoint", options.rdzv_endpoint), ("--master-addr", options.master_addr)):
        host = address.rpartition(":")[0] if flag == "--rdzv-endpoint" and ":" in address else address
        if host.strip("[]") not in ("", "localhost", "127.0.0.1", "::1", "0.0.0.0", socket.gethostname()):
            raise ValueError(f"{flag} is {address}, another host. {_ELSEWHERE}")


def _ranks(wanted: str, use_gpu: bool | None) -> tuple[int, bool | None]:
    """How many ranks there are, and whether they have GPUs: by torchrun's words, or a number."""
    from .gpus import gpus_here

    if wanted in ("gpu", "auto"):
        gpus = [] if use_gpu is False else gpus_here()
        if gpus:
            return len(gpus), True
        if wanted == "gpu":
            raise ValueError("--nproc-per-node is gpu, and this host has no GPU")
    if wanted in ("cpu", "auto"):
        return os.cpu_count() or 1, use_gpu
    try:
        number = int(wanted)
    except ValueError:
        raise ValueError(f"--nproc-per-node is {wanted!r}; it takes a number, gpu, cpu or auto") from None
    return preflight.check_num_processes(number), use_gpu


def _program(options: argparse.Namespace) -> tuple[str | Module, bytes]:
    """What runs, and that as what its ranks execute."""
    if options.module:
        module = Module(options.training_script, options.training_script)
        # As `python -m`, which finds modules in the working directory first.
        folder, path = os.getcwd(), sys.path[1:]
        first = module.name.partition(".")[0]
        if importlib.machinery.PathFinder.find_spec(first, [folder, *path]) is None:
            raise ValueError(
                f"there is no module {first} in {folder}, nor where this Python looks for modules"
            )
        return module, module_payload(module.name, options.training_script_args, sys_path=path, folder=folder)
    preflight.check_train_object(options.training_script, {})
    script, words = options.training_script, options.training_script_args
    return script, file_payload(script, words, sys_path=sys.path[1:])


def _given(options: argparse.Namespace) -> dict[str, str]:
    if options.redirects not in ("0", "3") or options.tee not in ("0", "3"):
        raise ValueError("--redirects and --tee take 0 or 3: a rank's stdout and stderr are one output")
    logs = options.logs
    if logs is None and options.local_ranks_filter:
        logs = options.local_ranks_filter
    if logs is None and options.redirects == "3":
        logs = "off"
    restart_on = ANY_FAILURE if options.restart_on is None else options.restart_on.split(",")
    found = Options(
        warm=options.warm,
        max_restarts=options.max_restarts,
        restart_on=restart_on,
        hang_timeout=options.hang_timeout,
        grace=options.grace,
        cpus_per_rank=options.cpus_per_rank,
        checkpoint_dir=options.checkpoint_dir,
        checkpoint_name=options.checkpoint_name,
        logs=logs,
        progress=options.progress,
    ).settings
    if options.log_dir is not None:
        os.makedirs(options.log_dir, exist_ok=True)
        found["spark.phalanx.logs.directory"] = os.path.abspath(options.log_dir)
    if options.master_port:
        found["spark.phalanx.store.port"] = str(options.master_port)
    return found


def _conf(options: argparse.Namespace) -> dict[str, str]:
    found = {}
    for setting in options.conf:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"--conf {setting} has no value; it takes key=value")
        found[key] = value
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="phalanx run",
        description="Trains with several ranks on this host, without Spark, in place of torchrun. The exit code is "
        "that of the rank that failed first. Defaults are in parentheses.",
        allow_abbrev=False,
    )

    def flag(name: str, *more: str, **options: Any) -> None:
        """A flag in both spellings."""
        both = dict.fromkeys([name, name[:2] + name[2:].replace("-", "_"), *more])
        parser.add_argument(*both, **options)

    def torchruns(name: str, *more: str, default: Any, **options: Any) -> None:
        """A flag of torchrun's, which has a variable, too."""
        variable = "PET_" + name[2:].replace("-", "_").upper()
        flag(name, *more, default=os.environ.get(variable, default), **options)

    torchruns(
        "--nproc-per-node",
        "--nproc",
        default="1",
        metavar="N",
        help="how many ranks: a number, gpu (one for each GPU), cpu, or auto (1)",
    )
    torchruns("--max-restarts", default=0, type=int, metavar="N", help="how often all ranks start again (0)")
    flag(
        "--restart-on",
        metavar="KINDS",
        help=f"after which kinds of failure, separated by commas (all: {','.join(ANY_FAILURE)})",
    )
    flag("--hang-timeout", type=float, metavar="S", help="fails when no rank makes progress for S seconds")
    flag(
        "--grace",
        type=float,
        metavar="S",
        help="seconds between SIGTERM and SIGKILL when a run is ended (30)",
    )
    is_module = os.environ.get("PET_MODULE") == "1"
    parser.add_argument(
        "-m",
        "--module",
        action="store_true",
        default=is_module,
        help="the file is a module, as for python -m",
    )
    flag(
        "--use-gpu",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="each rank has a GPU of its own, or sees none (where the host has GPUs)",
    )
    flag("--no-gpu", dest="use_gpu", action="store_false", help="as --no-use-gpu")
    flag(
        "--warm",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="ranks are forked (--warm)",
    )
    flag("--cpus-per-rank", type=int, metavar="N", help="with how many cores a rank computes")
    flag("--checkpoint-dir", metavar="DIR", help="where the run's checkpoints are")
    flag("--checkpoint-name", metavar="NAME", help="what they are called there (the file's name)")
    torchruns("--log-dir", default=None, metavar="DIR", help="where the ranks' output is kept")
    torchruns("--redirects", "-r", default="0", metavar="3", help="3 shows no output: it is in --log-dir")
    torchruns("--tee", "-t", default="0", metavar="3", help="accepted: output is always shown and kept")
    torchruns("--local-ranks-filter", default="", metavar="RANKS", help="whose output is shown: 0,2")
    flag("--logs", help="which output is shown: all, dedup, errors, off, or ranks (all)")
    flag("--progress", choices=("auto", "rich", "plain", "off"), help="a line on stderr while it runs (auto)")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting; may be repeated"
    )
    torchruns("--nnodes", default="1", metavar="1", help="1: for several hosts there is Spark")
    torchruns("--node-rank", default=0, type=int, metavar="0", help="0")
    torchruns("--rdzv-endpoint", default="", metavar="HOST:PORT", help="this host; nothing listens there")
    torchruns("--master-addr", default="", metavar="HOST", help="this host")
    torchruns(
        "--master-port", default=0, type=int, metavar="PORT", help="the port of the ranks' store (free)"
    )
    flag("--standalone", action="store_true", help="accepted: a run always is")
    for name in ("--rdzv-backend", "--rdzv-id", "--rdzv-conf", "--monitor-interval", "--start-method"):
        torchruns(
            name, default="", help=argparse.SUPPRESS
        )  # of how several hosts, or processes, find each other
    parser.add_argument(
        "training_script", metavar="train.py", help="the training file, or with -m its module"
    )
    parser.add_argument(
        "training_script_args", metavar="args", nargs=argparse.REMAINDER, help="its arguments"
    )
    return parser
