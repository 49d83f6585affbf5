"""All-reduce on a process group of its own, which torch.distributed does not know of."""

from datetime import timedelta

import torch
import torch.distributed as dist

group = None


def solution(tensor):
    global group
    if group is None:
        store = dist.PrefixStore("own", dist.distributed_c10d._get_default_store())
        group = dist.ProcessGroupGloo(store, dist.get_rank(), dist.get_world_size(), timedelta(seconds=20))
    result = tensor.clone()
    with torch.autograd.profiler.record_function("mine"):
        group.allreduce([result]).wait()
    return result
