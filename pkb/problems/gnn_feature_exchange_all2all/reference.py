"""Send features of requested seeds back to the ranks that asked.

Each rank r of the group (W ranks, in group order) holds `local_features` [S, ...] and `seed_inverse_ids` [R] int64,
row numbers of local_features that may repeat; S and R differ by rank, R may be 0. `counts_sent` and `counts_received`
are lists of W counts in relative order: entry j speaks of peer p = (r + j) mod W, so entry 0 of oneself. With
G = local_features[seed_inverse_ids] (R = sum of counts_received), the rows of G fall into consecutive pieces of
counts_received[j] rows: piece j answers what peer p asked and goes there. Rank r returns a new tensor
[sum(counts_sent), ...] of the same dtype: consecutive pieces of counts_sent[j] rows, piece j from peer p, in that
sender's order. The lists always agree: counts_sent[j] on r is counts_received[(W - j) mod W] on p. Pieces may be
empty, and all may be of unequal size. A pure move: every bit arrives as it was sent. `group` None is the default
group. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(
    local_features: torch.Tensor,
    seed_inverse_ids: torch.Tensor,
    counts_sent: list[int],
    counts_received: list[int],
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    # The collective counts peers from 0: relative entry W - r is the first one there.
    first = (world_size - rank) % world_size
    out_splits = counts_received[first:] + counts_received[:first]
    in_splits = counts_sent[first:] + counts_sent[:first]
    # Turning the ids is cheaper than turning the rows they name.
    split = sum(counts_received[:first])
    ids = torch.cat([seed_inverse_ids[split:], seed_inverse_ids[:split]])
    received = local_features.new_empty((sum(in_splits), *local_features.shape[1:]))
    dist.all_to_all_single(received, local_features[ids], in_splits, out_splits, group=group)
    split = sum(in_splits[:rank])
    return torch.cat([received[split:], received[:split]])
