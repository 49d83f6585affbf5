"""Parameter all-gather through an FP8 round trip with delayed scaling.

With W ranks, each rank holds `flat_param_shard` [p], its part of the parameters, and `amax_history` [K] bf16, its own
maxima of earlier steps, oldest first; p, K and dtypes are equal on all ranks. Each rank: a = max|x| in float32.
new_history [K] = amax_history without its entry 0, then a rounded to the dtype of the history. scale =
max(max(new_history), 1e-12) / 448 in float32. q = x / scale in float32, rounded to float8_e4m3fn, to nearest, ties to
even (quotients are below 464, and those above 448 give 448). rec = q times scale in float32, rounded to the dtype of
flat_param_shard. Every rank returns the pair (full, new_history): full [W p] holds all ranks' rec in rank order, the
own one too (also for W = 1), with the same bits on all ranks; new_history is the rank's own. Each rank has its own
scale: maxima are not taken over ranks. Rounding to FP8 by that scale is part of the contract; a quotient may be off by
an ulp of float32. The results are new tensors. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(flat_param_shard: torch.Tensor, amax_history: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    amax = torch.linalg.vector_norm(flat_param_shard, float("inf"), dtype=torch.float32)
    new_history = torch.cat((amax_history[1:], amax.to(amax_history.dtype).view(1)))
    # One dimension, not none: else quotients of bf16 numbers would be computed in bf16.
    largest = new_history.float().amax(dim=0, keepdim=True).clamp_min(1e-12)
    # Division by a Python number would be a multiplication by its reciprocal on a GPU.
    scale = largest / torch.full_like(largest, 448.0)
    codes = (flat_param_shard / scale).to(torch.float8_e4m3fn)
    restored = codes.to(flat_param_shard.dtype).mul_(scale)
    if dist.get_world_size() == 1:
        return restored, new_history
    full = restored.new_empty(dist.get_world_size() * restored.shape[0])
    dist.all_gather_into_tensor(full, restored)
    return full, new_history
