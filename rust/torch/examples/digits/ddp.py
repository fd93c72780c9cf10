"""The same training in Python, to compare with: ddp.py FOLDER prints each rank's losses, as JSON.

DistributedDataParallel on gloo, one process a rank, one thread each, on what prepare.py made.
"""

import json
import os
import sys
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from prepare import network
from torch.nn.parallel import DistributedDataParallel


def train(rank: int, ranks: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    # An eager network with the weights of the scripted one; rank 0's reach the others through the wrapper.
    model = network()
    if rank == 0:
        model.load_state_dict(torch.jit.load(folder / "model.pt").state_dict())
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = numpy.load(folder / "data.npz")
    images, targets = torch.from_numpy(data["images"]), torch.from_numpy(data["targets"])
    losses = []
    for step in torch.from_numpy(numpy.load(folder / "order.npy")):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[step[rank]]), targets[step[rank]])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    (folder / f"ddp-{rank}.json").write_text(json.dumps(losses))
    dist.barrier()
    os._exit(0)  # gloo's threads have been seen to abort a rank that ends in order


def main(folder: Path) -> None:
    ranks = numpy.load(folder / "order.npy").shape[1]
    os.environ["OMP_NUM_THREADS"] = "1"
    mp.spawn(train, (ranks, folder), ranks)
    print([json.loads((folder / f"ddp-{rank}.json").read_text()) for rank in range(ranks)])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
