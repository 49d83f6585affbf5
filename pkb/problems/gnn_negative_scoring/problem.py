"""Judge's side of gnn_negative_scoring.

Even draws have no ties: the scores of positives are odd multiples of 1/16, those of negatives even ones, so near to 0
that their sigmoids are distinct in bf16 too. Odd draws are normal, with ties. Libraries differ in the last digits of a
sigmoid, so the true one may be off by two units in the last place of float32 before it is rounded to the input dtype;
rankings that no such error explains are wrong. As ties are free, counting >= in place of > is right. `tiny_many` is
not in the catalogue: so many negatives that counting them in bf16 shows. The baseline sends padded rows of scores,
rather than a copy for each rank.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import Expected, accepts, exact
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# Rank r has `rows` + (r mod 3) * `more` rows; `rows_in_all` are shared by the ranks.
PROBLEM = Problem(
    number=69,
    group="graph",
    parallelism="dp",
    origin="GraphStorm link-prediction evaluation (broadcast of scores, MRR ranking)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"rows": 9, "more": 4, "negatives": 41},
        "tiny_many": {"rows": 5, "more": 3, "negatives": 701},
        "base": {"rows_in_all": 1024, "more": 1, "negatives": 1000},
        "large": {"rows": 65536, "more": 1, "negatives": 1000},
    },
    check=exact(),
)

LARGEST = 20
"""Negatives are 2 / 16 times integers up to this one, of either sign; positives lie between and beyond them."""


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    rows, num_negatives = _num_rows(size, draw.world_size, draw.rank), size["negatives"]
    if draw.index % 2 == 0:
        positive = (2 * draw.integers(-LARGEST - 1, LARGEST + 1, rows) + 1) / 16
        # The best and the worst.
        positive[0], positive[1] = (2 * LARGEST + 1) / 16, -(2 * LARGEST + 1) / 16
        negative = 2 * draw.integers(-LARGEST, LARGEST + 1, rows, num_negatives) / 16
        scores = positive.to(draw.dtype), negative.to(draw.dtype)
    else:
        scores = draw.normal(rows), draw.normal(rows, num_negatives)
    if draw.index % 3 == 0:
        return scores
    return (*scores, Group.whole(draw.world_size) if draw.index % 3 == 1 else None)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Expected]:
    bounds = [_bounds(positive, negative) for positive, negative, *_ in inputs_of_all_ranks]
    least, middle, most = (torch.cat(part) for part in zip(*bounds, strict=True))
    return [Expected(middle, check=accepts(lambda got: (got < least) | (got > most)))] * world_size


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # A rank ranks its own rows: each score is read once and compared once. The rankings (4 bytes are enough) of the
    # others come over the link; all are written in 8 bytes.
    rows = [_num_rows(size, world_size, rank) for rank in range(world_size)]
    return Cost(
        link_bytes=4.0 * (sum(rows) - min(rows)) if world_size > 1 else 0.0,
        hbm_bytes=max(rows) * (size["negatives"] + 1) * dtype_bytes(dtype) + 8 * sum(rows),
        flops=float(max(rows) * size["negatives"]),
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    right = expected[0].value
    scores = [(positive, negative) for positive, negative, *_ in inputs_of_all_ranks]
    num_negatives = scores[0][1].shape[1]

    def answers(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
        return [torch.cat([_bounds(*pair)[1] for pair in pairs])] * world_size

    yield "counted from 0", [right - 1] * world_size
    yield "the positive counted too", [right + 1] * world_size
    yield "from the lowest score", [num_negatives + 2 - right] * world_size
    yield "counted in bf16", [1 + (right - 1).clamp_max(256)] * world_size
    yield "last negative left out", answers([(p, n[:, :-1]) for p, n in scores])
    yield "last negatives left out", answers([(p, n[:, : num_negatives // 32 * 32]) for p, n in scores])
    yield "negatives of the next row", answers([(p, n.roll(1, 0)) for p, n in scores])
    if world_size == 1:
        return
    parts = list(right.split([len(p) for p, _ in scores]))
    yield "own rows alone", parts
    yield "ranks in order of arrival", [torch.cat(parts[r:] + parts[:r]) for r in range(world_size)]
    yield "ranks backwards", [torch.cat(parts[::-1])] * world_size
    fewest = min(len(part) for part in parts)
    yield "as many rows of every rank", [torch.cat([part[:fewest] for part in parts])] * world_size
    own = [[p if s == r else torch.zeros_like(p) for s, p in enumerate(parts)] for r in range(world_size)]
    yield "peers' rankings not received", [torch.cat(one) for one in own]


def _num_rows(size: Size, world_size: int, rank: int) -> int:
    more = int(rank % 3 * size["more"])
    return max(16, size["rows_in_all"] // world_size + more) if "rows_in_all" in size else int(size["rows"] + more)


def _bounds(positive: torch.Tensor, negative: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The smallest ranking that is right, the one of exact sigmoids with ties last, and the largest right one."""
    below, middle, above = _sigmoids(positive.unsqueeze(1))
    negative_below, negative_middle, negative_above = _sigmoids(negative)
    pairs = ((negative_below, above), (negative_middle, middle))
    least, exactly = (1 + torch.count_nonzero(n > p, dim=1) for n, p in pairs)
    return least, exactly, 1 + torch.count_nonzero(negative_above >= below, dim=1)


def _sigmoids(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The sigmoid with the largest error down, without one, and up, rounded to the dtype."""
    value = scores.double().sigmoid()
    error = 2 * torch.ldexp(torch.ones_like(value), torch.frexp(value).exponent - 24)
    return (value - error).to(scores.dtype), value.to(scores.dtype), (value + error).to(scores.dtype)
