"""Judge's side of gnn_feature_exchange_all2all.

At W = 1 there is one pair, so its count at base and large sizes is the mean, not three times the mean. The largest
pair of tiny sizes, 19 rows, changes with the draw. `tiny_3d` is not in the catalogue: features of more dimensions.
Costs take uniform counts, of which all others keep the sum.
"""

from collections.abc import Iterator
from itertools import accumulate
from math import prod
from typing import Any

import torch

from pkb.problems._check import exact
from pkb.problems._draw import Draw
from pkb.problems._feature_exchange import by_rank, cut, draw_counts, draw_ids, mean_rows, peers_of
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# Rank r has `seeds` + r * `more` rows of features of shape `row`.
PROBLEM = Problem(
    number=65,
    group="graph",
    parallelism="node partition",
    origin="DGL GraphBolt cooperative minibatching (feature exchange, forward)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"seeds": 5, "more": 1, "row": (6,), "most": 6, "largest": 19},
        "tiny_3d": {"seeds": 6, "more": 2, "row": (3, 5), "most": 3, "largest": 10},
        "base": {"seeds": 768, "more": 0, "row": (128,), "rows": 1024, "uniform": True},
        "large": {"seeds": 196608, "more": 0, "row": (512,), "rows": 2**18, "uniform": False},
    },
    check=exact(),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    world_size, rank = draw.world_size, draw.rank
    counts_sent, counts_received = draw_counts(size, draw)
    num_seeds = size["seeds"] + rank * size["more"]
    features = (draw.normal(num_seeds, *size["row"]).float() + 10 * rank).to(draw.dtype)
    ids = draw_ids(draw, sum(counts_received), num_seeds)
    arguments = (features, ids, counts_sent, counts_received)
    if draw.index % 3 == 0:
        return arguments
    return (*arguments, Group.whole(world_size) if draw.index % 3 == 1 else None)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    pieces = [_pieces(arguments) for arguments in inputs_of_all_ranks]
    # On peer p, rank r is relative entry (r - p) mod W.
    return [torch.cat([pieces[p][(r - p) % world_size] for p in peers_of(r, world_size)]) for r in range(world_size)]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # With counts alike for all pairs, as many rows come as go, all but the own piece over the link. Rows are read
    # once and written once, ids (8 bytes) read.
    rows = mean_rows(size, world_size)
    row_bytes = prod(size["row"]) * dtype_bytes(dtype)
    return Cost(
        link_bytes=rows * (world_size - 1) / world_size * row_bytes,
        hbm_bytes=rows * (2 * row_bytes + 8),
        flops=0.0,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    ranks = range(world_size)
    pieces = [_pieces(arguments) for arguments in inputs_of_all_ranks]
    in_order = [
        (features, torch.arange(len(ids), device=ids.device) % len(features), *rest)
        for features, ids, *rest in inputs_of_all_ranks
    ]
    yield "first rows in place of those that the ids name", oracle(in_order, world_size)
    own = [[torch.zeros_like(b) if j == 0 else b for j, b in enumerate(piece)] for piece in pieces]
    yield (
        "own piece not written",
        [torch.cat([own[p][(r - p) % world_size] for p in peers_of(r, world_size)]) for r in ranks],
    )
    if world_size == 1:
        return
    yield "pieces by ascending source", [torch.cat([pieces[p][(r - p) % world_size] for p in ranks]) for r in ranks]
    if world_size > 2:
        turned = [torch.cat([pieces[(r - j) % world_size][j] for j in ranks]) for r in ranks]
        yield "pieces in the order of ranks backwards", turned
    yield "piece j sent to rank j", [torch.cat([pieces[p][r] for p in peers_of(r, world_size)]) for r in ranks]
    # Sizes are right, but the sender looks for the piece where it would lie in the order of ranks.
    yield (
        "pieces cut in the order of ranks",
        [torch.cat([_cut_by_rank(inputs_of_all_ranks[p], p, r) for p in peers_of(r, world_size)]) for r in ranks],
    )
    confused = [(f, i, received, sent) for f, i, sent, received, *_ in inputs_of_all_ranks]
    yield (
        "counts_sent and counts_received confused",
        [
            torch.cat([cut(_rows(confused[p]), confused[p][3], (r - p) % world_size) for p in peers_of(r, world_size)])
            for r in ranks
        ],
    )


def _rows(arguments: tuple[Any, ...]) -> torch.Tensor:
    features, ids = arguments[:2]
    rows: torch.Tensor = features.index_select(0, ids)
    return rows


def _pieces(arguments: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """What a rank sends, in relative order."""
    rows = _rows(arguments)
    ends = list(accumulate(arguments[3]))
    return tuple(rows[end - n : end] for end, n in zip(ends, arguments[3], strict=True))


def _cut_by_rank(arguments: tuple[Any, ...], sender: int, receiver: int) -> torch.Tensor:
    return cut(_rows(arguments), by_rank(arguments[3], sender), receiver)
