"""A communication hook for DistributedDataParallel that lets the collective average.

DDP looks at the types of a hook's arguments, so the annotations have to be those types, not text.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future


def average_hook(group: Any, bucket: GradBucket) -> Future[torch.Tensor]:
    """Averages a bucket in the all-reduce itself: `wrapped.register_comm_hook(None, phalanx.average_hook)`.

    Without a hook, DDP divides all gradients by the number of ranks before it has them summed up: where they are views
    of its buckets, that is a reading and a writing of them all. Here the sum is divided while it is in the cache.
    `group` is the process group of DDP, None for the default one. Any backend that has `ReduceOp.AVG` will do; gloo
    hasn't.
    """
    work = dist.all_reduce(bucket.buffer(), dist.ReduceOp.AVG, group, async_op=True)
    assert work is not None, "this rank is in the group"
    averaged: Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return averaged
