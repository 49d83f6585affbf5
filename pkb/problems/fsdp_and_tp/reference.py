"""SwiGLU feed-forward with weights sharded over an FSDP x TP grid.

W = `n_tp` `n_fsdp` ranks (AssertionError otherwise); rank = f n_tp + t has FSDP place f and TP place t. It holds
`x_local` [B, D], which the ranks of one f share and which differs by f, and shards of three weights: `W1_shard` and
`W2_shard` [D/n_fsdp, F/n_tp], and `W3_shard` [F/n_tp, D/n_fsdp]. Shapes and dtype are equal on all ranks. The shards of
the ranks of one t, joined in the order of f, are W1_t and W2_t [D, F/n_tp], along dim 0, and W3_t [F/n_tp, D], along
dim 1.

With part(f, t) = (silu(x W1_t) * (x W2_t)) W3_t for the x of f, where silu(a) = a / (1 + exp(-a)), rank (f, t) returns
the sum over t' of part(f, t'): a new tensor [B, D] in the dtype of the inputs. Either number may be 1. Accumulate in
float32; x W1_t, x W2_t, silu, the product, each part and their sum may each be rounded to the dtype. All inputs stay as
they were. Process groups are made in the first call with a layout and kept for later ones.
"""

from functools import cache

import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    x_local: torch.Tensor,
    W1_shard: torch.Tensor,
    W2_shard: torch.Tensor,
    W3_shard: torch.Tensor,
    n_tp: int,
    n_fsdp: int,
) -> torch.Tensor:
    assert dist.get_world_size() == n_tp * n_fsdp, "the world size must be n_tp * n_fsdp"
    tp, fsdp = _groups(n_tp, n_fsdp)
    W1, W2, W3_parts = (_gathered(shard, n_fsdp, fsdp) for shard in (W1_shard, W2_shard, W3_shard))
    W3 = W3_parts.view(n_fsdp, *W3_shard.shape).transpose(0, 1).flatten(1)
    result = (F.silu(x_local @ W1) * (x_local @ W2)) @ W3
    dist.all_reduce(result, op=dist.ReduceOp.SUM, group=tp)
    return result


def _gathered(shard: torch.Tensor, n_fsdp: int, group: dist.ProcessGroup) -> torch.Tensor:
    """The shards of the group, joined along dim 0."""
    result = shard.new_empty(n_fsdp * shard.shape[0], shard.shape[1])
    dist.all_gather_into_tensor(result, shard, group=group)
    return result


@cache
def _groups(n_tp: int, n_fsdp: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """TP group and FSDP group of this rank; every rank takes part in making all of them."""
    tp = [dist.new_group([f * n_tp + t for t in range(n_tp)]) for f in range(n_fsdp)]
    fsdp = [dist.new_group([f * n_tp + t for f in range(n_fsdp)]) for t in range(n_tp)]
    f, t = divmod(dist.get_rank(), n_tp)
    return tp[f], fsdp[t]
