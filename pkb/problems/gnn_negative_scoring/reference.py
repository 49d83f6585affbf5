"""Rank of each positive edge among its negatives, for all ranks' edges.

Each rank r of the group (W ranks, in group order) holds `local_pos_scores` [P], the scores of its positive edges, and
`local_neg_scores` [P, N], those of N negative edges for each of them. P differs by rank; N and the dtype are equal on
all ranks; no score is NaN. With s(x) = sigmoid(x) rounded to the input dtype, the ranking of row i is
1 + #{j : s(local_neg_scores[i, j]) > s(local_pos_scores[i])}, at least 1 and at most N + 1. Among equal s the place is
free: a ranking that is larger by up to #{j : s(local_neg_scores[i, j]) = s(local_pos_scores[i])} is right too, and s is
known up to the last digits of float32. Every rank returns a new int64 tensor with the rankings of rank 0's rows,
then of rank 1's, and so on. `group` None is the default group. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(
    local_pos_scores: torch.Tensor, local_neg_scores: torch.Tensor, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    world_size, num_rows = dist.get_world_size(group), len(local_pos_scores)
    counts = torch.empty(world_size, dtype=torch.int64, device=local_pos_scores.device)
    dist.all_gather_into_tensor(counts, torch.full_like(counts[:1], num_rows), group=group)
    num_rows_by_rank = counts.tolist()
    most = max(num_rows_by_rank)
    scores = local_neg_scores.new_zeros((most, 1 + local_neg_scores.shape[1]))
    scores[:num_rows, 0] = local_pos_scores
    scores[:num_rows, 1:] = local_neg_scores
    gathered = scores.new_empty((world_size * most, scores.shape[1]))
    dist.all_gather_into_tensor(gathered, scores, group=group)
    # Stable, with the positive in column 0: before all negatives of the same score.
    order = gathered.sigmoid_().argsort(dim=1, descending=True, stable=True)
    ranking = (order == 0).int().argmax(dim=1) + 1
    return torch.cat([part[:n] for part, n in zip(ranking.view(-1, most), num_rows_by_rank, strict=True)])
