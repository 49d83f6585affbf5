"""Gradient mean, scattered, through an FP8 round trip with delayed scaling.

With W ranks, each rank holds `flat_grads` [n], n a multiple of W, and `amax_history` [K] bf16, its own maxima of
earlier steps, oldest first; n, K and dtypes are equal on all ranks. Each rank: a = max|g| in float32. new_history
[K] = amax_history without its entry 0, then a rounded to the dtype of the history. scale = max(max(new_history),
1e-12) / 448 in float32. q = g / scale in float32, rounded to float8_e4m3fn, to nearest, ties to even (quotients are
below 464, and those above 448 give 448). rec = q times scale in float32. With slice r of all ranks' rec, rank r
returns the pair (shard, new_history): shard [n/W] = (1/W) sum rec in the dtype of flat_grads, and its own history.
Each rank has its own scale: neither scales nor maxima are exchanged. Rounding to FP8 by that scale is part of the
contract; rec and the sum, whose order is free, may be rounded to the dtype of flat_grads or not, and a quotient may
be off by an ulp of float32. The results are new tensors. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(flat_grads: torch.Tensor, amax_history: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    world_size = dist.get_world_size()
    amax = torch.linalg.vector_norm(flat_grads, float("inf"), dtype=torch.float32)
    new_history = torch.cat((amax_history[1:], amax.to(amax_history.dtype).view(1)))
    # One dimension, not none: else quotients of bf16 numbers would be computed in bf16.
    largest = new_history.float().amax(dim=0, keepdim=True).clamp_min(1e-12)
    # Division by a Python number would be a multiplication by its reciprocal on a GPU.
    scale = largest / torch.full_like(largest, 448.0)
    codes = (flat_grads / scale).to(torch.float8_e4m3fn)
    restored = codes.to(flat_grads.dtype).mul_(scale)
    if world_size == 1:
        return restored, new_history
    shard = restored.new_empty(restored.shape[0] // world_size)
    dist.reduce_scatter_tensor(shard, restored, op=dist.ReduceOp.SUM)
    return shard.div_(world_size), new_history
