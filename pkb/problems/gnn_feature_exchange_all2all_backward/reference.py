"""Return feature gradients to their owner and add them per seed.

The backward of an exchange in which ranks asked each other for features of seeds. Each rank r of the group (W ranks,
in group order) holds `grad_output` [sum(counts_sent), h] float32, the gradients of the rows that it got, and
`seed_inverse_ids` [R] int64, which names, for each row that it gave, one of its own `seed_size` seeds: ids may repeat,
seeds may be unnamed, R may be 0. `counts_sent` and `counts_received` are lists of W counts in relative order: entry j
speaks of peer p = (r + j) mod W, so entry 0 of oneself. grad_output falls into consecutive pieces of counts_sent[j]
rows, and piece j goes to peer p. The pieces that arrive, put one behind the other in relative order (counts_received[j]
rows from peer p, in that sender's order), are D [R, h]. Rank r returns a new float32 tensor [seed_size, h]:
out[i] = sum of D[k] over all k with seed_inverse_ids[k] = i, exactly 0 for seeds that are not named. Sums are made in
float32 or better, in any order.

The lists always agree: counts_sent[j] on r is counts_received[(W - j) mod W] on p, and R is the sum of counts_received.
Pieces may be empty, and all may be of unequal size; R and seed_size differ by rank, h does not. `group` None is the
default group. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(
    grad_output: torch.Tensor,
    seed_inverse_ids: torch.Tensor,
    seed_size: int,
    counts_sent: list[int],
    counts_received: list[int],
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    # The collective counts peers from 0: relative entry W - r is the first one there.
    first = (world_size - rank) % world_size
    in_splits = counts_sent[first:] + counts_sent[:first]
    out_splits = counts_received[first:] + counts_received[:first]
    sent = grad_output
    if first:
        split = sum(counts_sent[:first])
        sent = torch.cat([grad_output[split:], grad_output[:split]])
    received = grad_output.new_empty((sum(out_splits), grad_output.shape[1]))
    dist.all_to_all_single(received, sent, out_splits, in_splits, group=group)
    # Turning the ids is cheaper than turning the rows that they belong to.
    split = sum(counts_received[:first])
    ids = torch.cat([seed_inverse_ids[split:], seed_inverse_ids[:split]])
    return grad_output.new_zeros((seed_size, grad_output.shape[1])).index_add_(0, ids, received)
