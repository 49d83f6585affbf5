"""Sigmoid image-text loss with texts of all ranks.

Each rank of the group (W ranks, in group order) holds B pairs, `image_features` [B, D] and `text_features` [B, D]; B, D
and the dtype are equal on all ranks, `logit_scale` and `logit_bias` too. For its B images and the W B texts of all
ranks let z_ij = logit_scale <image_i, text_j> + logit_bias, and y_ij = 1 if text j is row i of the rank's own texts,
else -1: row i of another rank's texts is no match. Each rank returns its own loss, not reduced over ranks:
(1/B) sum_ij log(1 + exp(-y_ij z_ij)), a tensor without dimensions in the dtype of the features. z may be of any size
and sign. Sums are in float32; the scaled features, z, the logarithms, and the sum of a block of texts may be rounded to
the dtype of the features. `group` None is the default group. The result is a new tensor. All inputs stay as they were.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    image_features: torch.Tensor,
    text_features: torch.Tensor,
    logit_scale: float,
    logit_bias: float = 0.0,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    world_size = dist.get_world_size(group)
    scaled = image_features * logit_scale
    total = torch.zeros((), device=scaled.device)
    # Texts travel both ways round; of an even number of ranks the one opposite sends its own one way.
    num_both_ways, num_steps = (world_size - 1) // 2, world_size // 2
    held = [text_features]
    for step in range(num_steps):
        arriving, works = _exchange(held, step < num_both_ways, group)
        total += _block_losses(scaled, held, logit_bias, step == 0)
        for work in works:
            work.wait()
        held = arriving
    total += _block_losses(scaled, held, logit_bias, num_steps == 0)
    return (total / len(scaled)).to(image_features.dtype)


def _exchange(
    held: list[torch.Tensor], both_ways: bool, group: dist.ProcessGroup | None
) -> tuple[list[torch.Tensor], list[dist.Work]]:
    """Start to pass on the texts from the previous rank (at first the own ones), and those from the next rank."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    arriving = []
    operations = []
    for texts, direction in ((held[0], 1), (held[-1], -1))[: 1 + both_ways]:
        target, source = (rank + direction) % world_size, (rank - direction) % world_size
        arriving.append(torch.empty_like(texts))
        operations.append(dist.P2POp(dist.isend, texts, group=group, group_peer=target))
        operations.append(dist.P2POp(dist.irecv, arriving[-1], group=group, group_peer=source))
    return arriving, dist.batch_isend_irecv(operations)


def _block_losses(scaled: torch.Tensor, blocks: list[torch.Tensor], bias: float, own: bool) -> torch.Tensor:
    """Float32 sum of log(1 + exp(-y z)) over blocks of texts; the pairs match if the block is the own one."""
    total = torch.zeros((), device=scaled.device)
    for texts in blocks:
        z = (scaled @ texts.T).add_(bias)
        if own:
            z.diagonal().neg_()
        total += F.softplus(z).sum(dtype=torch.float32)
    return total
