"""Trains through the loss of a rank: checkpoints, a SIGKILL in the middle, and the weights of an undisturbed run.

    python python/examples/resume.py

Each of two ranks has its own data; gradients are averaged by gloo. In the first attempt rank 1 is killed at step 6.
With `max_restarts=1` both ranks start again and go on from the newest checkpoint; at the end the weights are compared
bit by bit with those of a run that nothing happened to.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile

STEPS = 10
KILL_AT = 6


def train(folder: str, killed: bool) -> tuple[int, dict[str, list[float]]]:
    """The step from which the last attempt went on, and the weights at the end."""
    import phalanx
    import torch
    import torch.distributed as dist
    from phalanx import checkpoint

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    first_attempt = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    saved = checkpoint.latest(directory=folder)
    begin = 0
    if saved is not None:
        begin, state = saved
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for step in range(begin, STEPS):
        # The data of a step depend on nothing but the step and the rank, so an attempt that goes on sees the same.
        data = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(32, 8, generator=data)
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        if killed and first_attempt and rank == 1 and step == KILL_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        phalanx.report(step=step + 1, loss=loss)
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            checkpoint.save(state, step + 1, directory=folder)
    dist.destroy_process_group()
    return begin, {name: value.flatten().tolist() for name, value in model.state_dict().items()}


def main() -> None:
    """Runs both trainings and compares them."""
    from phalanx import TorchDistributor
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    distributor = TorchDistributor(num_processes=2, use_gpu=False, max_restarts=1)
    with tempfile.TemporaryDirectory() as calm, tempfile.TemporaryDirectory() as rough:
        _, expected = distributor.run(train, calm, False)
        begin, weights = distributor.run(train, rough, True)
    spark.stop()
    same = weights == expected
    print(
        f"killed at step {KILL_AT}, went on from step {begin}; the weights are {'the same' if same else 'others'}"
    )
    sys.exit(not same)


if __name__ == "__main__":
    main()
