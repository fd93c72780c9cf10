"""An elastic run whose ranks are killed and stopped, and whose executors die and come back, until it is enough."""

from __future__ import annotations

import textwrap

import phalanx
import pytest
from support.breathing import PARTS
from support.own_session import in_session
from support.tiers import whole

# A step's batch is told by its number, and each rank has a part of it: the losses are those of one process, whatever
# the ranks are, if no step is lost or taken twice.
TRAINING = """
import os, random, signal, tempfile, torch
folder = tempfile.mkdtemp()
BATCH = 64

def keep_digits(folder):
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    torch.save((torch.tensor(images) / 16, torch.tensor(labels)), os.path.join(folder, "digits"))

def fresh(folder):
    import os
    import torch

    torch.manual_seed(1)
    layers = torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    net = torch.nn.Sequential(*layers).double()
    return net, torch.optim.SGD(net.parameters(), lr=0.5), *torch.load(os.path.join(folder, "digits"))

def take(net, optimizer, images, labels, step, rank=0, size=1, add=lambda tensor: None):
    # Returns the loss of the step's batch, of which each rank computes a part.
    import torch

    generator = torch.Generator().manual_seed(step)
    rows = torch.randint(len(images), (BATCH,), generator=generator)[rank::size]
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(images[rows]), labels[rows], reduction="sum") / BATCH
    loss.backward()
    for parameter in net.parameters():
        add(parameter.grad)
    optimizer.step()
    total = loss.detach()
    add(total)
    return total.item()

def train(folder):
    import os, time
    import torch
    import torch.distributed as dist
    from phalanx import checkpoint

    with open(os.path.join(folder, f"pid-{os.getpid()}"), "w"):
        pass
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    net, *others = fresh(folder)
    losses, sizes = [], []
    saved = checkpoint.latest()
    if saved is not None:
        losses, sizes = saved[1]["losses"], saved[1]["sizes"]
        net.load_state_dict(saved[1]["net"])
    sizes = [*sizes, size]
    state = lambda: {"net": net.state_dict(), "losses": losses, "sizes": sizes}
    while True:
        step = len(losses)
        checkpoint.save_if_preempted(state, step)
        is_enough = torch.tensor([float(rank == 0 and os.path.exists(os.path.join(folder, "enough")))])
        dist.all_reduce(is_enough)
        if is_enough:
            return losses, sizes
        losses.append(take(net, *others, step, rank, size, dist.all_reduce))
        phalanx.report(step=step)
        if step % 5 == 0 and rank == 0:
            checkpoint.save(state(), step + 1)
        time.sleep(0.02)

def undisturbed(steps):
    # The same number of steps in one process: the losses, and how many digits the net knows then.
    net, optimizer, images, labels = fresh(folder)
    losses = [take(net, optimizer, images, labels, step) for step in range(steps)]
    return losses, float((net(images).argmax(1) == labels).double().mean())

def ranks_here():
    found = []
    for name in os.listdir(folder):
        if name.startswith("pid-") and psutil.pid_exists(int(name[4:])):
            found.append(psutil.Process(int(name[4:])))
    return [rank for rank in found if any("phalanx-guard" in (p.name() or "") for p in rank.parents())]

def decommission(chance):
    jvm, backend = spark.sparkContext._jvm, spark.sparkContext._jsc.sc().schedulerBackend()
    why = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("chaos", jvm.scala.Option.empty())
    there = [number for number in backend.getExecutorIds().mkString(",").split(",") if number]
    backend.decommissionExecutor(chance.choice(there), why, False, False)

def harm(chance):
    kind = chance.choice(["rank", "rank", "executor", "freeze", "decommission"])
    try:
        if kind == "executor":
            chance.choice(sorted(executors_here(), key=lambda p: p.pid)).kill()
        elif kind == "decommission":
            decommission(chance)
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
def test_a_run_whose_ranks_and_executors_go_has_the_losses_of_an_undisturbed_one(
    seconds: int, every: float
) -> None:
    code = f"""
    keep_digits(folder)
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
    # The digits are known by then, however slow the machine is.
    until(lambda: run.done or run.reports[0]["step"] >= 200, 90)
    open(os.path.join(folder, "enough"), "w").close()
    losses, sizes = run.result(120)
    until(lambda: not jobs())
    until(lambda: not ranks_here())
    expected, accuracy = undisturbed(len(losses))
    off = max(abs(one - other) for one, other in zip(losses, expected))
    answer = dict(steps=len(losses), off=off, accuracy=accuracy, sizes=sizes, story=story,
                  restarts=run.snapshot()["restarts"])
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
            "spark.decommission.enabled": "true",
        },
        timeout=380,
    )
    assert answer["off"] < 1e-9, answer
    assert answer["accuracy"] > 0.9, answer
    assert answer["story"], answer
    assert answer["restarts"], answer
