"""Judge's side of ulysses_gather_heads_scatter_seq.

Inputs are contiguous: the catalogue speaks of no views here. Padding is +0. Contiguity of the result is not judged.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from pkb.problems._check import exact
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# Each of `layouts` is (shape, seq_dim, head_dim), where None in a shape stands for S; layouts and `lengths` take
# turns with the draw. `per_rank` is c, the length of a rank's part; `missing` positions of padding make W of them.
# Where `all_heads` is given, a rank holds all_heads / W of them.
PROBLEM = Problem(
    number=37,
    group="sequence-parallel",
    parallelism="sp",
    origin="VeOmni / DeepSpeed-Ulysses",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {
            "layouts": (
                ((2, None, 3, 5), 1, 2),
                ((None, 2, 3), 0, 1),
                ((2, None, 3), 1, 0),
                ((2, 3, None, 5), 2, 1),
            ),
            "lengths": (9, 8, 5, 1, 7),
        },
        "base": {"layouts": (((16, None, 8, 64), 1, 2),), "lengths": (16,)},
        "large": {"layouts": (((1, None, 64, 128), 1, 2),), "per_rank": 8192, "missing": 3, "all_heads": 64},
    },
    check=exact(),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    shape, seq_dim, head_dim = size["layouts"][draw.index % len(size["layouts"])]
    x = draw.normal(*_filled(size, shape, head_dim, draw.index, draw.world_size))
    if draw.index % 3 == 0:
        return x, seq_dim, head_dim
    return x, seq_dim, head_dim, Group.whole(draw.world_size) if draw.index % 3 == 1 else None


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    seq_dim, head_dim = inputs_of_all_ranks[0][1:3]
    # All heads first, then every rank's positions: a position beyond the end is a zero of its own.
    whole = torch.cat([x for x, *_ in inputs_of_all_ranks], dim=head_dim).movedim(seq_dim, 0)
    c = -(-whole.shape[0] // world_size)
    padded = whole.new_zeros((c * world_size, *whole.shape[1:]))
    padded[: whole.shape[0]] = whole
    return [padded[r * c : (r + 1) * c].movedim(0, seq_dim) for r in range(world_size)]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # All parts but the own one leave, as many arrive; everything is read once and written once. Padding is counted
    # as if it traveled: it is a few positions.
    shape, seq_dim, head_dim = size["layouts"][0]
    filled = _filled(size, shape, head_dim, 0, world_size)
    length = -(-filled[seq_dim] // world_size) * world_size
    num_bytes = prod(filled) // filled[seq_dim] * length * dtype_bytes(dtype)
    return Cost(link_bytes=num_bytes * (world_size - 1) / world_size, hbm_bytes=2 * num_bytes, flops=0.0)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    seq_dim, head_dim = inputs_of_all_ranks[0][1:3]
    xs = [x for x, *_ in inputs_of_all_ranks]
    length, c = xs[0].shape[seq_dim], expected[0].shape[seq_dim]
    ranks = range(world_size)
    got = [list(whole.chunk(world_size, dim=head_dim)) for whole in expected]
    own = [[torch.zeros_like(b) if s == r else b for s, b in enumerate(got[r])] for r in ranks]
    yield "own heads not written", [torch.cat(parts, dim=head_dim) for parts in own]
    if world_size == 1:
        return
    turned = [parts[r:] + parts[:r] for r, parts in enumerate(got)]
    yield "heads in order of arrival", [torch.cat(parts, dim=head_dim) for parts in turned]
    if head_dim > 0 and xs[0].shape[seq_dim] > 1:
        yield "received parts one behind the other", [torch.cat(p).view(expected[0].shape) for p in got]
    whole = torch.cat(xs, dim=head_dim)

    def places(index: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's positions, looked up at other places; zeros where those are none."""
        inside = (index >= 0) & (index < length)
        found = whole.index_select(seq_dim, index.clamp(0, length - 1))
        mask = inside.view(-1, *[1] * (whole.dim() - 1 - seq_dim))
        return list(torch.where(mask, found, 0.0).chunk(world_size, dim=seq_dim))

    at = torch.arange(c * world_size, device=whole.device)
    if length > 1:
        yield "positions dealt out one by one", places(at % c * world_size + at // c)
    if length == c * world_size:
        return
    yield "padding in front", places(at - (c * world_size - length))
    yield "last position in place of padding", places(at.clamp(max=length - 1))
    yield "sequence from the beginning in place of padding", places(at % length)
    yield "parts of floor(S / W) positions", places(at // c * (length // world_size) + at % c)
    yield "no padding", list(whole.tensor_split(world_size, dim=seq_dim))


def _filled(size: Size, shape: tuple[int | None, ...], head_dim: int, index: int, world_size: int) -> list[int]:
    """The shape with S, and the heads of one rank, filled in."""
    if "per_rank" in size:
        length = size["per_rank"] * world_size - size["missing"]
    else:
        length = size["lengths"][index % len(size["lengths"])]
    filled = [length if n is None else n for n in shape]
    if "all_heads" in size:
        filled[head_dim] = size["all_heads"] // world_size
    return filled
