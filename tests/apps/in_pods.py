"""A driver in a pod, whose ranks run in pods; prints what they saw and what it was told, each a line of JSON.

in_pods.py FOLDER limited|unlimited      whether pods have a limit of memory

DRIVER_CONF   the Spark settings as JSON

Over each stage ranks train, one raises, one is killed and starts again, one takes too much memory, and one too much of
/dev/shm; in local mode some of it. Then it prints SEEN, with what `phalanx.doctor` found, and waits for FOLDER/go.

Then ranks wait for the end of their pod, each having left its host's name in FOLDER/RUN/RANK: over the jvm stage
without a restart, which prints LOST, and over the python stage with one, which prints AGAIN. At last it tries the jvm
stage once more, and prints NOEXEC.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Any

from session import session, take

RANKS = 4
# More than pods have; and a test that has no limit, by mistake, ends before the machine's memory does.
MOST_HOARDED_MIB = 6144


def confinement() -> dict[str, Any]:
    """What this rank may do, and where it is."""
    import ctypes
    import socket
    import subprocess

    def refused(path: str) -> bool:
        try:
            open(path, "w").close()
        except OSError:
            return True
        return False

    script = f"/tmp/script-{os.getpid()}"
    with open(script, "w") as file:
        file.write("#!/bin/sh\n")
    os.chmod(script, 0o755)
    try:
        subprocess.run([script], check=False)
        executes = True
    except PermissionError:
        executes = False
    os.unlink(script)
    with open("/proc/self/status") as status:
        said = {name: value.strip() for name, _, value in (line.partition(":") for line in status)}
    with open("/proc/1/comm") as comm:
        first = comm.read().strip()
    shm = os.statvfs("/dev/shm")
    return {
        "host": socket.gethostname(),
        "user": os.getuid(),
        "capabilities": {name: int(said[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")},
        "no new privileges": said["NoNewPrivs"],
        "seccomp": said["Seccomp"],
        "writes": [path for path in ("/new", "/etc/new", "/root/new", "/proc/sys/new") if not refused(path)],
        "executes in /tmp": executes,
        "traces": ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0,
        "first process": first,
        "shm": shm.f_blocks * shm.f_frsize,
    }


def trains() -> dict[str, Any]:
    """A few steps of DDP over both backends, and what the rank may do."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {"gloo": dist.group.WORLD, "phalanx": dist.new_group(backend="phalanx")}
    losses: dict[str, list[float]] = {}
    for name, group in groups.items():
        torch.manual_seed(0)
        net = DistributedDataParallel(torch.nn.Linear(400, 300), process_group=group)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        inputs = torch.randn(8, 400, generator=torch.Generator().manual_seed(dist.get_rank()))
        losses[name] = []
        for _ in range(4):
            loss = net(inputs).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[name].append(loss.item())
    # More than the smaller /dev/shm has.
    large = torch.full((1 << 20,), float(dist.get_rank() + 1))
    dist.all_reduce(large, group=groups["phalanx"])
    print("the sum is", large[-1].item())
    dist.destroy_process_group()
    return {"losses": losses, "sum": large.mean().item(), **confinement()}


def fails() -> None:
    import time

    if os.environ["RANK"] == "1":
        raise KeyError("no such column")
    time.sleep(600)


def is_killed_once() -> list[Any]:
    import signal
    import time

    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if attempt == "0" and os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
        os.kill(os.getpid(), signal.SIGKILL)
    elif attempt == "0":
        time.sleep(600)
    return [attempt, os.getpid()]


def hoards(most_mib: int) -> None:
    import time

    if os.environ["RANK"] == "3":
        kept = []
        for _ in range(0, most_mib, 32):
            kept.append(b"x" * (32 << 20))
        raise AssertionError("nobody minds")
    time.sleep(600)


def fills_shm() -> None:
    """A data loader's workers hand batches over that are larger than the smaller /dev/shm."""
    import time

    import torch

    shm = os.statvfs("/dev/shm")
    if shm.f_blocks * shm.f_frsize > 2 << 20:
        time.sleep(600)
    for _ in torch.utils.data.DataLoader(torch.zeros(4, 1 << 20), batch_size=2, num_workers=1):
        pass


def feeds() -> list[int]:
    """The rows that this rank is fed, of which blocks of the other pod are some."""
    import phalanx

    return [row for batch in phalanx.data("train").loader(batch_size=50) for row in batch["id"].tolist()]


def returns() -> str:
    return os.environ["RANK"]


def waits(folder: str) -> str:
    """Leaves where this rank is. It has a child in a session of its own, and one whose parent has ended."""
    import socket
    import subprocess
    import time

    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if attempt == "1":
        return f"{socket.gethostname()} {attempt}"
    subprocess.Popen(["sleep", "500"], start_new_session=True)
    subprocess.run(["sh", "-c", "sleep 500 &"], check=True)
    path = os.path.join(folder, os.environ["RANK"])
    with open(f"{path}.new", "w") as file:
        file.write(socket.gethostname())
    os.rename(f"{path}.new", path)
    time.sleep(600)
    return ""


def told(
    train: Any, *args: Any, local: bool = False, data: dict[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    """What a run returned, or what its caller was told."""
    sets = {} if data is None else {"data": data}
    from phalanx import TorchDistributor, TrainingError

    distributor = TorchDistributor(
        num_processes=2 if local else RANKS, local_mode=local, use_gpu=False, **options
    )
    began = time.monotonic()
    try:
        run = distributor.start(train, *args, **sets)
        answer: dict[str, Any] = {"results": run.results(180)}
    except TrainingError as error:
        answer = {"kind": error.kind, "rank": error.rank, "message": error.message, "text": str(error)}
    except Exception:
        answer = {"unexpected": traceback.format_exc()}
    print(train.__name__, options, f"{time.monotonic() - began:.1f} s:", str(answer)[:2000], flush=True)
    return answer


def tries(limited: bool, local: bool) -> dict[str, Any]:
    """What becomes of runs that no pod's end disturbs."""
    seen = {
        "trains": told(trains, local=local),
        "fails": told(fails, local=local, warm=False),
        "is killed": told(is_killed_once, local=local, max_restarts=1),
    }
    if not local:
        seen["fills shm"] = told(fills_shm)
        if limited:
            seen["hoards"] = told(hoards, MOST_HOARDED_MIB)
    return seen


def main() -> None:
    folder, limited = sys.argv[1], sys.argv[2] == "limited"
    import phalanx

    spark = session("python")
    seen: dict[str, Any] = {}
    for stage in ("python", "jvm"):
        take(spark, stage)
        seen[stage] = tries(limited, local=False)
    seen["local"] = tries(limited, local=True)
    seen["feeds"] = told(feeds, data={"train": spark.range(0, 4000, 1, 8)})
    report = phalanx.doctor(spark, RANKS, use_gpu=False)
    seen["doctor"] = [[one.level, one.host, one.check, one.means] for one in report.findings]
    print("SEEN", json.dumps(seen), flush=True)
    until = time.monotonic() + 120
    while not os.path.exists(f"{folder}/go") and time.monotonic() < until:
        time.sleep(0.05)
    for name, stage, restarts in (("LOST", "jvm", 0), ("AGAIN", "python", 1)):
        take(spark, stage)
        mine = os.path.join(folder, name)
        os.mkdir(mine)
        print(name, json.dumps(told(waits, mine, max_restarts=restarts)), flush=True)
    take(spark, "jvm")
    print("NOEXEC", json.dumps(told(returns)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
