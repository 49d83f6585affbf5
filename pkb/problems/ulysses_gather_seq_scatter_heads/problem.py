"""Judge's side of ulysses_gather_seq_scatter_heads.

Inputs are contiguous: the catalogue speaks of no views here. Tiny draws 3 mod 4 pass an unpadded size of W less than
the joined length, which cuts nothing; those 1 mod 4 pass one less than that length.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from pkb.problems._check import exact
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# Each of `layouts` is (shape, seq_dim, head_dim), where None in a shape stands for a rank's 3 to 5 positions; they
# take turns with the draw. `padding` counts positions at the end of the joined sequence that are cut off.
PROBLEM = Problem(
    number=36,
    group="sequence-parallel",
    parallelism="sp",
    origin="VeOmni / DeepSpeed-Ulysses",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {
            "layouts": (
                ((2, None, 8, 5), 1, 2),
                ((None, 16, 3), 0, 1),
                ((8, None, 3), 1, 0),
                ((2, 8, None, 5), 2, 1),
            )
        },
        "base": {"layouts": (((16, 16, 8, 64), 1, 2),), "padding": 0},
        "large": {"layouts": (((1, 8192, 64, 128), 1, 2),), "padding": 5},
    },
    check=exact(),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    layouts, index = size["layouts"], draw.index
    # One further every four draws, so that each layout is met with and without a cut.
    shape, seq_dim, head_dim = layouts[(index + index // 4) % len(layouts)]
    x = draw.normal(*[3 + index % 3 if n is None else n for n in shape])
    length = x.shape[seq_dim] * draw.world_size
    if "padding" in size:
        unpadded = length - size["padding"] if size["padding"] else 0
    else:
        unpadded = (0, length - 1, 0, length - draw.world_size)[index % 4]
    if unpadded == 0 and index % 4 == 0:
        return x, seq_dim, head_dim
    group = Group.whole(draw.world_size) if index % 3 == 1 else None
    return (x, seq_dim, head_dim, group) if unpadded == 0 else (x, seq_dim, head_dim, group, unpadded)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    seq_dim = inputs_of_all_ranks[0][1]
    joined = [torch.cat(parts, dim=seq_dim) for parts in _received(inputs_of_all_ranks)]
    return [_cut(y, inputs_of_all_ranks[0]) for y in joined]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # All parts but the own one leave, as many arrive; everything is read once and written once. Of the padding
    # nothing is left out: it is a few positions.
    num_elems = prod(4 if n is None else n for n in size["layouts"][0][0])
    num_bytes = num_elems * dtype_bytes(dtype)
    return Cost(link_bytes=num_bytes * (world_size - 1) / world_size, hbm_bytes=2 * num_bytes, flops=0.0)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size, first = len(expected), inputs_of_all_ranks[0]
    x, seq_dim, head_dim = first[:3]
    ranks = range(world_size)
    got = _received(inputs_of_all_ranks)
    own = [[torch.zeros_like(b) if s == r else b for s, b in enumerate(got[r])] for r in ranks]
    yield "own part not written", [_cut(torch.cat(parts, dim=seq_dim), first) for parts in own]
    joined = [torch.cat(parts, dim=seq_dim) for parts in got]
    unpadded = _unpadded(first)
    if unpadded and unpadded % world_size == 0 and unpadded < joined[0].shape[seq_dim]:
        yield "cut although the size is a multiple of W", [y.narrow(seq_dim, 0, unpadded) for y in joined]
    if world_size == 1:
        return
    if unpadded % world_size:
        yield "not cut", joined
        yield "cut at the beginning", [y.narrow(seq_dim, y.shape[seq_dim] - unpadded, unpadded) for y in joined]
        kept = -(-unpadded // world_size)
        yield "cut to a multiple of W", [y.narrow(seq_dim, 0, kept * world_size) for y in joined]
        short = [[b.narrow(seq_dim, 0, unpadded // world_size) for b in parts] for parts in got]
        yield "cut on every rank", [torch.cat(parts, dim=seq_dim) for parts in short]
    turned = [torch.cat(parts[r:] + parts[:r], dim=seq_dim) for r, parts in enumerate(got)]
    yield "sequence in order of arrival", [_cut(y, first) for y in turned]
    yield "sequence backwards by rank", [_cut(torch.cat(parts[::-1], dim=seq_dim), first) for parts in got]
    yield "another rank's heads", [expected[r - 1] for r in ranks]
    heads = x.shape[head_dim] // world_size
    if heads > 1:
        dealt = [
            [one[0].unflatten(head_dim, (heads, world_size)).select(head_dim + 1, r) for one in inputs_of_all_ranks]
            for r in ranks
        ]
        yield "heads dealt out one by one", [_cut(torch.cat(parts, dim=seq_dim), first) for parts in dealt]
    if seq_dim > 0:
        behind = [torch.cat(parts).view(y.shape) for parts, y in zip(got, joined, strict=True)]
        yield "received parts one behind the other", [_cut(y, first) for y in behind]


def _received(inputs_of_all_ranks: list[tuple[Any, ...]]) -> list[list[torch.Tensor]]:
    """For each rank, the heads that all ranks send to it."""
    world_size, head_dim = len(inputs_of_all_ranks), inputs_of_all_ranks[0][2]
    heads = inputs_of_all_ranks[0][0].shape[head_dim] // world_size
    return [[x.narrow(head_dim, r * heads, heads) for x, *_ in inputs_of_all_ranks] for r in range(world_size)]


def _cut(joined: torch.Tensor, arguments: tuple[Any, ...]) -> torch.Tensor:
    """Without the padding that the arguments tell of."""
    seq_dim, unpadded = arguments[1], _unpadded(arguments)
    world_size = joined.shape[seq_dim] // arguments[0].shape[seq_dim]
    return joined.narrow(seq_dim, 0, unpadded) if unpadded % world_size else joined


def _unpadded(arguments: tuple[Any, ...]) -> int:
    return int(arguments[4]) if len(arguments) == 5 else 0
