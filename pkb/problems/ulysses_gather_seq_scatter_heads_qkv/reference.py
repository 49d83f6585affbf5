"""Ulysses on a packed q|k|v projection.

Each rank of the group (W ranks, in group order) holds contiguous `qkv_tensor` [..., 3 P], of two or more dimensions:
its part of the sequence along `seq_dim` (>= 0, not the last dimension) and in the last dimension q (P columns), k
(P), v (P). Shape and dtype are equal on all ranks; P is a multiple of W. Rank r gets part r of each third: columns
t P + r P/W to t P + (r+1) P/W - 1 for t = 0, 1, 2. It returns these three parts side by side, the sequences of all
ranks joined along seq_dim in rank order: [..., 3 P/W] if `restore_shape`, else [..., 3, P/W]. The joined sequence is
cut at its end to the first `unpadded_dim_size` positions if that is neither None nor 0 nor a multiple of W (it is
less than the joined length then); otherwise nothing is cut. All this holds for W = 1, too. A pure move: every bit
arrives as it was sent. `group` None is the default group. The result is a new tensor and need not be contiguous. The
input stays as it was.
"""

import torch
import torch.distributed as dist


def solution(
    qkv_tensor: torch.Tensor,
    seq_dim: int,
    group: dist.ProcessGroup | None = None,
    unpadded_dim_size: int | None = None,
    restore_shape: bool = True,
) -> torch.Tensor:
    world_size = dist.get_world_size(group)
    thirds = qkv_tensor.view(*qkv_tensor.shape[:-1], 3, world_size, -1)
    sent = thirds.movedim(-2, 0).contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    joined = torch.cat(received.unbind(), dim=seq_dim)
    if unpadded_dim_size and unpadded_dim_size % world_size != 0:
        joined = joined.narrow(seq_dim, 0, unpadded_dim_size)
    return joined.flatten(-2) if restore_shape else joined
