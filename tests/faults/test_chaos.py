"""An elastic run whose ranks are killed and stopped, and whose executors die and come back, until it is enough."""

from __future__ import annotations

import textwrap

import phalanx
import pytest
from support.breathing import PARTS
from support.own_session import in_session
from support.tiers import whole

# The sum of all steps tells whether one was lost or taken twice, whatever the number of ranks.
TRAINING = """
import os, random, signal, tempfile
folder = tempfile.mkdtemp()

def train(folder):
    import os, time
    import torch
    import torch.distributed as dist
    from phalanx import checkpoint

    with open(os.path.join(folder, f"pid-{os.getpid()}"), "w"):
        pass
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    saved = checkpoint.latest()
    step, total, sizes = (0, 0, []) if saved is None else (saved[0], saved[1]["total"], saved[1]["sizes"])
    sizes = [*sizes, dist.get_world_size()]
    while True:
        is_enough = rank == 0 and os.path.exists(os.path.join(folder, "enough"))
        votes = torch.tensor([float(rank == 0), float(is_enough)])
        dist.all_reduce(votes)
        assert votes[0] == 1
        step += 1
        total += step
        phalanx.report(step=step)
        if votes[1]:
            return step, total, sizes
        if step % 5 == 0 and rank == 0:
            checkpoint.save({"total": total, "sizes": sizes}, step)
        time.sleep(0.02)

def ranks_here():
    found = []
    for name in os.listdir(folder):
        if name.startswith("pid-") and psutil.pid_exists(int(name[4:])):
            found.append(psutil.Process(int(name[4:])))
    return [rank for rank in found if any("phalanx-guard" in (p.name() or "") for p in rank.parents())]

def harm(chance):
    kind = chance.choice(["rank", "rank", "executor", "freeze"])
    try:
        if kind == "executor":
            chance.choice(sorted(executors_here(), key=lambda p: p.pid)).kill()
        else:
            victim = chance.choice(sorted(ranks_here(), key=lambda p: p.pid))
            if kind == "rank":
                victim.kill()
            else:
                victim.suspend()
                threading.Timer(1.0, victim.resume).start()
    except (psutil.Error, IndexError):  # it has just ended
        return kind + " (gone)"
    return kind
"""


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("seconds", "every"), [(20, 4.0), pytest.param(120, 10.0, marks=whole("two minutes of faults"))]
)
def test_no_step_is_lost_or_taken_twice_whatever_is_killed(seconds: int, every: float) -> None:
    code = f"""
    until(lambda: executors() == 2)
    run = phalanx.TorchDistributor(
        num_processes=(1, 2), local_mode=False, use_gpu=False, checkpoint_dir=folder, max_restarts=1000,
        restart_on=["lost_node", "signal", "hang", "exception", "exit_code", "start"], grace=2,
    ).start(train, folder)
    until(lambda: run.reports)
    chance, story = random.Random(47), []
    end = time.monotonic() + {seconds}
    while time.monotonic() < end and not run.done:
        time.sleep({every})
        story.append(harm(chance))
    open(os.path.join(folder, "enough"), "w").close()
    step, total, sizes = run.result(120)
    until(lambda: not jobs())
    until(lambda: not ranks_here())
    answer = dict(step=step, total=total, sizes=sizes, story=story, restarts=run.snapshot()["restarts"])
    """
    answer = in_session(
        "local-cluster[2,1,1024]",
        PARTS + TRAINING + textwrap.dedent(code),
        conf={
            "spark.jars": phalanx.jar_path(),
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.phalanx.elastic.patience": "1s",
            "spark.phalanx.elastic.cooldown": "1s",
            # Both are of one host, whose failures are no news here.
            "spark.phalanx.host.cooldown": "0",
        },
        timeout=380,
    )
    step = answer["step"]
    assert answer["total"] == step * (step + 1) // 2, answer
    assert answer["story"], answer
    assert answer["restarts"], answer
