"""k nearest neighbors of every rank's queries over train features of all ranks.

Each rank of the group (W ranks, in group order) holds queries `test_features_rank` [Q, D], its train features as
columns, `train_features_rank_T` [D, N], and their labels, `train_labels_rank` [1, N] int64. Q and N may differ by
rank; D, the dtype of the features (bf16 or fp32) and `max_k` are equal on all ranks. max_k is at most the N of every
rank, else a ValueError is raised. Each rank returns the pair (sims, labels), both [Q, max_k], new tensors: for each of
its queries the max_k largest dot products with the train columns of all ranks, in descending order, in the dtype of
the features (accumulated in float32, rounded once), and the labels (int64) of these columns. Where rounded dot
products are equal, the order is free, and at place max_k any of the equal ones may be returned. `group` None is the
default group. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(
    test_features_rank: torch.Tensor,
    train_features_rank_T: torch.Tensor,
    train_labels_rank: torch.Tensor,
    max_k: int,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    world_size = dist.get_world_size(group)
    num_queries, dim = test_features_rank.shape
    own = torch.tensor([num_queries, train_features_rank_T.shape[1]], device=test_features_rank.device)
    counts = own.new_empty(world_size * 2)
    dist.all_gather_into_tensor(counts, own, group=group)
    all_counts = counts.view(world_size, 2).tolist()
    if max_k > min(num_columns for _, num_columns in all_counts):
        raise ValueError("max_k has to be at most the number of train features of every rank")
    # Queries of all ranks, padded to the longest, meet the own columns; the best of each go back to the owner.
    longest = max(queries for queries, _ in all_counts)
    padded = test_features_rank.new_zeros((longest, dim))
    padded[:num_queries] = test_features_rank
    queries = padded.new_empty((world_size * longest, dim))
    dist.all_gather_into_tensor(queries, padded, group=group)
    sims, columns = torch.topk(queries @ train_features_rank_T, max_k, dim=1)
    sims = _exchanged(sims, group)[:num_queries]
    labels = _exchanged(train_labels_rank[0][columns], group)[:num_queries]
    sims, places = torch.topk(sims, max_k, dim=1)
    return sims, labels.gather(1, places)


def _exchanged(candidates: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """[W n, k] of all queries and the own columns as [n, W k] of the own queries and all columns."""
    world_size = dist.get_world_size(group)
    received = torch.empty_like(candidates)
    dist.all_to_all_single(received, candidates, group=group)
    return received.view(world_size, -1, received.shape[1]).transpose(0, 1).flatten(1)
