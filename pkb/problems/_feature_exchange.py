"""What the feature exchange and its backward share: tables of counts, and lists in relative order.

A table holds the rows of features that go from rank to rank, [sender, receiver]. In a list in relative order, entry j
of rank r speaks of peer (r + j) mod W. Sizes with `most` draw every pair's count up to it, and one pair's `largest`;
those with `rows` draw a fixed sum, `rows` a rank in the mean: where `uniform`, in every fourth draw to all ranks alike.
"""

from __future__ import annotations

import torch

from pkb.problems._draw import Draw
from pkb.problems._spec import Size


def peers_of(rank: int, world_size: int) -> list[int]:
    """All ranks in relative order."""
    return [(rank + j) % world_size for j in range(world_size)]


def draw_counts(size: Size, draw: Draw) -> tuple[list[int], list[int]]:
    """This rank's `counts_sent` and `counts_received`."""
    table = (_small_counts(size, draw) if "most" in size else _mean_counts(size, draw)).tolist()
    peers = peers_of(draw.rank, draw.world_size)
    return [table[p][draw.rank] for p in peers], [table[draw.rank][p] for p in peers]


def mean_rows(size: Size, world_size: int) -> float:
    """Rows that a rank sends in the mean, to itself too."""
    if "most" not in size:
        return float(size["rows"])
    return float(((world_size**2 - 1) * 0.7 * size["most"] / 2 + size["largest"]) / world_size)


def draw_ids(draw: Draw, num_rows: int, num_seeds: int) -> torch.Tensor:
    """`seed_inverse_ids`: some seeds many times, some never."""
    return (draw.uniform(0.0, 1.0, num_rows).double().square() * num_seeds).long()


def cut(rows: torch.Tensor, counts: list[int], j: int) -> torch.Tensor:
    """Piece j, of rows from the beginning again after the end."""
    return rows.roll(-sum(counts[:j]), dims=0)[: counts[j]]


def by_rank(counts: list[int], rank: int) -> list[int]:
    """A list in relative order of `rank` in the order of ranks."""
    return counts[len(counts) - rank :] + counts[: len(counts) - rank]


def _small_counts(size: Size, draw: Draw) -> torch.Tensor:
    """30 % of the pairs without rows, one with very many."""
    world_size, index = draw.world_size, draw.index
    counts = draw.shared_integers(0, size["most"] + 1, world_size, world_size)
    counts[draw.shared_uniform(0.0, 1.0, world_size, world_size) < 0.3] = 0
    counts[index % world_size, (index + index // 2 + 1) % world_size] = size["largest"]
    return counts


def _mean_counts(size: Size, draw: Draw) -> torch.Tensor:
    """Uniform, or one pair with three times the mean."""
    world_size, index = draw.world_size, draw.index
    mean = int(size["rows"]) // world_size
    if world_size == 1 or (size["uniform"] and index % 4 == 0):
        return torch.full((world_size, world_size), mean, device=draw.device)
    weights = draw.shared_uniform(0.5, 1.5, world_size, world_size).double()
    weights[draw.shared_uniform(0.0, 1.0, world_size, world_size) < 0.3] = 0
    largest = (index % world_size, (index + index // 2 + 1) % world_size)
    weights[largest] = 0
    total = mean * world_size**2
    counts = ((total - 3 * mean) * weights / weights.sum().clamp_min(1e-9)).long()
    # What rounding leaves over goes to the largest pair, so that the sum is the same in all draws.
    counts[largest] = total - counts.sum()
    return counts
