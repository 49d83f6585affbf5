"""Global sort with balanced output.

Each rank of the group (W ranks, in group order) holds `local_shard` [n_r], floating (bfloat16, float16, float32), of
the same dtype on all ranks; n_r differs by rank and may be 0, on all ranks, too. Values may be infinite and equal,
never NaN; -0 and 0 are equal. Let n be the sum of the n_r. All values of all ranks in ascending order are dealt out in
rank order: rank r returns a new tensor [m_r] of local_shard's dtype, positions r floor(n/W) + min(r, n mod W) onward,
m_r = floor(n/W) + 1 for r < n mod W, floor(n/W) else. The result is unique as values: which of -0 and 0 comes first is
free. `group` None is the default group. The input keeps its values and their order.
"""

import torch
import torch.distributed as dist
from torch.nn import functional


def solution(local_shard: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    run = local_shard.sort().values
    if world_size == 1:
        return run
    bounds = _bucket_bounds(run, group)
    counts = bounds.new_empty(world_size**2)
    dist.all_gather_into_tensor(counts, bounds.diff(), group=group)
    table = counts.view(world_size, world_size).tolist()
    bucket = _exchange(run, table[rank], [row[rank] for row in table], group).sort().values

    # Buckets are in order but of unequal length: a second exchange moves what lies across the wanted limits.
    num_values = sum(map(sum, table))
    share, longer = divmod(num_values, world_size)
    wanted = [r * share + min(r, longer) for r in range(world_size + 1)]
    held = [0]
    for column in zip(*table, strict=True):
        held.append(held[-1] + sum(column))
    moved = [
        [max(0, min(held[s + 1], wanted[d + 1]) - max(held[s], wanted[d])) for d in range(world_size)]
        for s in range(world_size)
    ]
    return _exchange(bucket, moved[rank], [row[rank] for row in moved], group)


def _bucket_bounds(run: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Where the sorted run is cut into one bucket a rank, int64 [W + 1], by regular sampling.

    Values are told apart by (value, rank, position), so that equal ones do not all fall into one bucket.
    """
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    device, length = run.device, len(run)
    steps = torch.arange(world_size, device=device)
    place = steps * length // world_size
    samples = run[place] if length else run.new_zeros(world_size)
    values = run.new_empty(world_size**2)
    places = place.new_empty(world_size**2)
    dist.all_gather_into_tensor(values, samples, group=group)
    # Ranks without values have samples that do not count.
    dist.all_gather_into_tensor(places, place if length else place - 1, group=group)
    is_void = places < 0
    by_value = torch.argsort(values, stable=True)
    order = by_value[torch.argsort(is_void[by_value].int(), stable=True)]
    num_samples = (~is_void).sum()
    chosen = order[steps[1:] * num_samples // world_size]
    splitters, source = values[chosen], chosen // world_size
    after = torch.searchsorted(run, splitters, right=True)
    before = torch.searchsorted(run, splitters)
    inner = torch.where(source == rank, places[chosen], torch.where(source > rank, after, before))
    # Where no rank has any values, the sample chosen is a void one.
    inner = inner.clamp(0, length)
    return functional.pad(functional.pad(inner, (1, 0)), (0, 1), value=length)


def _exchange(
    tensor: torch.Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup | None
) -> torch.Tensor:
    result = tensor.new_empty(sum(received))
    dist.all_to_all_single(result, tensor, received, sent, group=group)
    return result
