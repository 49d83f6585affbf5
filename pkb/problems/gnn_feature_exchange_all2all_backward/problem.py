"""Judge's side of gnn_feature_exchange_all2all_backward.

The baseline adds rows by index: the sparse matrix product that the origin uses is slower, and its matrix has to be
built anew in each call. Rows that arrive can be added at once, so the cost counts no copy of them.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import torch

from pkb.problems._check import relative
from pkb.problems._draw import Draw
from pkb.problems._feature_exchange import by_rank, cut, draw_counts, draw_ids, mean_rows, peers_of
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size

# Rank r has `seeds` + r * `more` seeds.
PROBLEM = Problem(
    number=66,
    group="graph",
    parallelism="node partition",
    origin="DGL GraphBolt cooperative minibatching (feature exchange, backward)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"seeds": 7, "more": 1, "hidden": 6, "most": 6, "largest": 19},
        "base": {"seeds": 512, "more": 0, "hidden": 128, "rows": 1024, "uniform": True},
        "large": {"seeds": 131072, "more": 0, "hidden": 256, "rows": 2**18, "uniform": False},
    },
    check=relative(bf16=1e-5, fp32=1e-5, rows=1e-4),
    dtypes=("fp32",),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    counts_sent, counts_received = draw_counts(size, draw)
    num_seeds = size["seeds"] + draw.rank * size["more"]
    gradients = draw.normal(sum(counts_sent), size["hidden"]) + draw.rank
    ids = draw_ids(draw, sum(counts_received), num_seeds)
    arguments = (gradients, ids, num_seeds, counts_sent, counts_received)
    if draw.index % 3 == 0:
        return arguments
    return (*arguments, Group.whole(draw.world_size) if draw.index % 3 == 1 else None)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    received = _received(inputs_of_all_ranks)
    return [_added(rows, one[1], one[2]) for rows, one in zip(received, inputs_of_all_ranks, strict=True)]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # With counts alike for all pairs, as many rows come as go, all but the own piece over the link. Each gradient
    # and its id (8 bytes) is read once and added once, each row of the result is written.
    rows, row_bytes = mean_rows(size, world_size), 4 * size["hidden"]
    num_seeds = size["seeds"] + size["more"] * (world_size - 1) / 2
    return Cost(
        link_bytes=rows * (world_size - 1) / world_size * row_bytes,
        hbm_bytes=rows * (row_bytes + 8) + num_seeds * row_bytes,
        flops=rows * size["hidden"],
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    ranks = range(world_size)
    received = _received(inputs_of_all_ranks)
    ids, num_seeds = [one[1] for one in inputs_of_all_ranks], [one[2] for one in inputs_of_all_ranks]

    def added(rows: list[torch.Tensor]) -> list[torch.Tensor]:
        return [_added(*one) for one in zip(rows, ids, num_seeds, strict=True)]

    yield "last row of each seed alone", [_last(*one) for one in zip(received, ids, num_seeds, strict=True)]
    named = [torch.bincount(i, minlength=n).unsqueeze(1) for i, n in zip(ids, num_seeds, strict=True)]
    yield "mean instead of sum", [one / n.clamp_min(1) for one, n in zip(expected, named, strict=True)]
    stale = [torch.where(n > 0, one, 1e-3) for one, n in zip(expected, named, strict=True)]
    yield "rows of unnamed seeds not zeroed", stale
    yield "added in bf16", [_added_in_bf16(*one) for one in zip(received, ids, num_seeds, strict=True)]
    in_order = [torch.arange(len(i), device=i.device) % n for i, n in zip(ids, num_seeds, strict=True)]
    yield "added in the order of rows", [_added(*one) for one in zip(received, in_order, num_seeds, strict=True)]
    if world_size == 1:
        return
    own = [one[3][0] for one in inputs_of_all_ranks]
    masks = [
        torch.arange(len(rows), device=rows.device).unsqueeze(1) < n for rows, n in zip(received, own, strict=True)
    ]
    yield "own piece alone", added([rows * mask for rows, mask in zip(received, masks, strict=True)])
    yield "own piece left out", added([rows * ~mask for rows, mask in zip(received, masks, strict=True)])
    kept = [one[4] for one in inputs_of_all_ranks]
    yield (
        "rows in the order of ranks, ids in relative order",
        added([rows.roll(sum(kept[r][world_size - r :]), dims=0) if r else rows for r, rows in enumerate(received)]),
    )
    gradients, sent = [one[0].double() for one in inputs_of_all_ranks], [one[3] for one in inputs_of_all_ranks]
    by_ranks = [by_rank(sent[p], p) for p in ranks]
    yield (
        "pieces cut in the order of ranks",
        added([torch.cat([cut(gradients[p], by_ranks[p], r) for p in peers_of(r, world_size)]) for r in ranks]),
    )
    if world_size == 2:
        return
    # Each sender cuts by the counts of what it gave, and the receiver takes as many rows as it waits for. On two ranks
    # all but the lengths is the same: the own piece comes first.
    yield (
        "counts_sent and counts_received confused",
        added(
            [
                torch.cat(
                    [
                        gradients[p].roll(-sum(kept[p][: (r - p) % world_size]), dims=0)[
                            : kept[r][(p - r) % world_size]
                        ]
                        for p in peers_of(r, world_size)
                    ]
                )
                for r in ranks
            ]
        ),
    )


def _received(inputs_of_all_ranks: list[tuple[Any, ...]]) -> list[torch.Tensor]:
    """D of each rank, in float64."""
    world_size = len(inputs_of_all_ranks)
    pieces = []
    for gradients, _, _, counts, *_ in inputs_of_all_ranks:
        ends = list(accumulate(counts))
        pieces.append([gradients[end - n : end].double() for end, n in zip(ends, counts, strict=True)])
    # On peer p, rank r is relative entry (r - p) mod W.
    return [torch.cat([pieces[p][(r - p) % world_size] for p in peers_of(r, world_size)]) for r in range(world_size)]


def _added(rows: torch.Tensor, ids: torch.Tensor, num_seeds: int) -> torch.Tensor:
    """Sums of runs of rows that are sorted by seed."""
    lengths = torch.bincount(ids, minlength=num_seeds)
    return torch.segment_reduce(rows[ids.argsort(stable=True)], "sum", lengths=lengths, initial=0.0)


def _last(rows: torch.Tensor, ids: torch.Tensor, num_seeds: int) -> torch.Tensor:
    """Of each seed the last row that names it."""
    ends = torch.bincount(ids, minlength=num_seeds).cumsum(0)
    ordered = rows[ids.argsort(stable=True)]
    is_named = torch.bincount(ids, minlength=num_seeds).unsqueeze(1) > 0
    return torch.where(is_named, ordered[(ends - 1).clamp_min(0)] if len(rows) else 0.0, 0.0).expand(-1, rows.shape[1])


def _added_in_bf16(rows: torch.Tensor, ids: torch.Tensor, num_seeds: int) -> torch.Tensor:
    total = torch.zeros((num_seeds, rows.shape[1]), dtype=torch.bfloat16, device=rows.device)
    return total.index_add_(0, ids, rows.bfloat16()).double()
