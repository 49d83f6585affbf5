"""Keyed jagged tensor all-to-all: from "my batch, all features" to "my features, all batches".

There are F = sum(key_splits) keys. `key_splits`, a list of W counts, equal on all ranks, deals them to the ranks of the
group `pg` (None: the default group; W ranks, in group order): rank d owns the next key_splits[d] keys, perhaps none.
Each rank s holds p_s(k) bags for every key k: `batch_size` (its own; it may differ by rank) where `stride_per_key` is
None, else stride_per_key[k] (a list of F counts of its own; batch_size is not used then). `lengths` [n] int64 has an
entry for each bag, all bags of key 0 first, then those of key 1, and so on; bag by bag in that order each owns the next
`lengths` entries of `values` [v] (of any dtype) and of `weights` [v] (of any dtype, or None). Bags may be empty, keys
may have none. On all ranks stride_per_key is None, or on none; the same holds for weights.

With g = `stagger` (equal on all ranks, divides W), `order` stands for the ranks x + (W/g) y for x = 0 to W/g-1 and, for
each, y = 0 to g-1; for g = 1 that is 0 to W-1. Rank d returns a dict of new tensors, on the inputs' device:
  lengths: for its own keys k ascending, for ranks s in `order`, the lengths of the bags of (s, k);
  values: the entries of these bags, in the same order;
  weights, only if given: the same of the weights;
  with stride_per_key None: stride, int64 without dimensions, the sum of all batch sizes, and stride_per_rank, int64
    [W], the batch sizes by ascending rank;
  otherwise: stride_per_key_per_rank, int64 [key_splits[d], W], p_s(k) for its own keys by ranks in `order`.
Dtypes are those of the inputs. A pure move: every bit as it was sent. All inputs stay as they were.
"""

from itertools import accumulate

import torch
import torch.distributed as dist


def solution(
    lengths: torch.Tensor,
    values: torch.Tensor,
    key_splits: list[int],
    batch_size: int,
    pg: dist.ProcessGroup | None = None,
    weights: torch.Tensor | None = None,
    stride_per_key: list[int] | None = None,
    stagger: int = 1,
) -> dict[str, torch.Tensor]:
    world_size, rank = dist.get_world_size(pg), dist.get_rank(pg)
    num_keys = sum(key_splits)
    strides = [batch_size] * num_keys if stride_per_key is None else stride_per_key
    # All ranks' bags and values a key, and batch sizes: a few kilobytes, read on the host once.
    ends = torch.tensor([0, *accumulate(strides)], device=lengths.device)
    counts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])[ends].diff()
    own_sizes = torch.cat([ends.diff(), counts, ends.new_tensor([batch_size])])
    sizes = own_sizes.new_empty((world_size, len(own_sizes)))
    dist.all_gather_into_tensor(sizes.view(-1), own_sizes, group=pg)
    by_rank = sizes.tolist()
    bags, entries = [one[:num_keys] for one in by_rank], [one[num_keys : 2 * num_keys] for one in by_rank]

    groups = world_size // stagger
    order = [x + groups * y for x in range(groups) for y in range(stagger)]
    result = {
        "lengths": _exchange(lengths, bags, key_splits, order, pg),
        "values": _exchange(values, entries, key_splits, order, pg),
    }
    if weights is not None:
        result["weights"] = _exchange(weights, entries, key_splits, order, pg)
    if stride_per_key is None:
        result["stride_per_rank"] = sizes[:, -1].clone()
        result["stride"] = result["stride_per_rank"].sum()
    else:
        first = sum(key_splits[:rank])
        own_keys = sizes[:, first : first + key_splits[rank]]
        result["stride_per_key_per_rank"] = own_keys.t()[:, order]
    return result


def _exchange(
    tensor: torch.Tensor,
    sizes: list[list[int]],
    key_splits: list[int],
    order: list[int],
    pg: dist.ProcessGroup | None,
) -> torch.Tensor:
    """Segments of the own keys, by key and then by rank in `order`; `sizes` [rank][key] are their lengths."""
    rank = dist.get_rank(pg)
    first = [0, *accumulate(key_splits)]
    sent = [sum(sizes[rank][first[d] : first[d + 1]]) for d in range(len(key_splits))]
    segments = [one[first[rank] : first[rank + 1]] for one in sizes]
    received = tensor.new_empty(sum(map(sum, segments)))
    dist.all_to_all_single(received, tensor, [sum(one) for one in segments], sent, group=pg)
    if key_splits[rank] == 0:
        return received
    parts = torch.split(received, [size for one in segments for size in one])
    num_own = key_splits[rank]
    return torch.cat([parts[s * num_own + k] for k in range(num_own) for s in order])
