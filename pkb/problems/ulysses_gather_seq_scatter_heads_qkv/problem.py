"""Judge's side of ulysses_gather_seq_scatter_heads_qkv.

Inputs are contiguous and seq_dim is not negative: the catalogue speaks of neither views nor negative dimensions here.
For W = 1 the result is a new tensor like any other: the entry allows no alias.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from pkb.problems._check import exact
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# In `shape` None stands for a rank's 3 to 5 positions. Tiny sizes vary the cut and restore_shape with the draw;
# `padding` counts positions at the end of the joined sequence that are cut off elsewhere.
PROBLEM = Problem(
    number=38,
    group="sequence-parallel",
    parallelism="sp",
    origin="VeOmni gather_seq_scatter_heads_qkv",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"shape": (2, None, 48), "seq_dim": 1},
        "tiny_2d": {"shape": (None, 48), "seq_dim": 0},
        "base": {"shape": (16, 16, 1536), "seq_dim": 1, "padding": 0},
        "large": {"shape": (1, 8192, 24576), "seq_dim": 1, "padding": 5},
    },
    check=exact(),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    index, seq_dim = draw.index, size["seq_dim"]
    x = draw.normal(*[3 + index % 3 if n is None else n for n in size["shape"]])
    length = x.shape[seq_dim] * draw.world_size
    if "padding" in size:
        unpadded, restore = (length - size["padding"] if size["padding"] else None), True
    else:
        unpadded, restore = (None, length - 1, 0, length)[index % 4], index % 5 != 0
    group = Group.whole(draw.world_size) if index % 2 == 1 else None
    arguments = (x, seq_dim, group, unpadded, restore)
    # Defaults that nothing follows are left out in some draws.
    if index % 4 in (1, 2) and restore:
        return arguments[:4]
    return arguments[:2] if index % 4 == 0 and restore and unpadded is None else arguments


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    _, seq_dim, unpadded, restore = _options(inputs_of_all_ranks[0])
    whole = torch.cat([x for x, *_ in inputs_of_all_ranks], dim=seq_dim)
    length = unpadded if unpadded % world_size else whole.shape[seq_dim]
    return [_columns(whole, index, restore).narrow(seq_dim, 0, length) for index in _places(whole, world_size)]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # All parts but the own one leave, as many arrive; everything is read once and written once. Of the padding
    # nothing is left out: it is a few positions.
    num_bytes = prod(4 if n is None else n for n in size["shape"]) * dtype_bytes(dtype)
    return Cost(link_bytes=num_bytes * (world_size - 1) / world_size, hbm_bytes=2 * num_bytes, flops=0.0)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    x, seq_dim, unpadded, restore = _options(inputs_of_all_ranks[0])
    ranks = range(world_size)
    xs = [one[0] for one in inputs_of_all_ranks]
    whole = torch.cat(xs, dim=seq_dim)
    length = expected[0].shape[seq_dim]
    places = _places(whole, world_size)
    full = [_columns(whole, index, restore) for index in places]

    def answers(sequence: torch.Tensor, columns: list[torch.Tensor]) -> list[torch.Tensor]:
        return [_columns(sequence, index, restore).narrow(seq_dim, 0, length) for index in columns]

    if not restore:
        yield "shape restored although not asked for", [one.flatten(-2) for one in expected]
        swapped = [one.transpose(-2, -1).reshape(one.shape) for one in expected]
        yield "thirds interleaved", swapped
    yield "q, k and v in another order", answers(whole, [index.roll(1, 0) for index in places])
    if world_size == 1:
        return
    uneven = unpadded % world_size != 0
    if uneven:
        yield "not cut", full
        yield "cut at the beginning", [one.narrow(seq_dim, one.shape[seq_dim] - length, length) for one in full]
        short = length // world_size
        parts = [[p.narrow(seq_dim, 0, short) for p in one.chunk(world_size, dim=seq_dim)] for one in full]
        yield "cut on every rank", [torch.cat(p, dim=seq_dim) for p in parts]
    all_columns = torch.arange(x.shape[-1], device=x.device)
    tail = places[0].shape
    yield "3 P columns cut into W parts", answers(whole, [c.view(tail) for c in all_columns.chunk(world_size)])
    dealt = [all_columns.view(-1, world_size)[:, r].reshape(tail) for r in ranks]
    yield "columns dealt out one by one", answers(whole, dealt)
    yield "another rank's columns", [expected[r - 1] for r in ranks]
    turned = [torch.cat(xs[r:] + xs[:r], dim=seq_dim) for r in ranks]
    pairs = zip(turned, places, strict=True)
    yield "sequence in order of arrival", [_columns(t, index, restore).narrow(seq_dim, 0, length) for t, index in pairs]
    if seq_dim > 0:
        behind = torch.cat(xs).reshape(whole.shape)
        yield "received parts one behind the other", answers(behind, places)


def _options(arguments: tuple[Any, ...]) -> tuple[torch.Tensor, int, int, bool]:
    """Tensor, seq_dim, unpadded size (0: none), restore_shape."""
    unpadded = arguments[3] if len(arguments) > 3 else None
    return arguments[0], arguments[1], unpadded or 0, arguments[4] if len(arguments) > 4 else True


def _places(whole: torch.Tensor, world_size: int) -> list[torch.Tensor]:
    """For each rank the columns that it gets, [3, P/W]."""
    third = whole.shape[-1] // 3
    columns = torch.arange(3 * third, device=whole.device)
    return [columns[columns % third // (third // world_size) == r].view(3, -1) for r in range(world_size)]


def _columns(whole: torch.Tensor, index: torch.Tensor, restore: bool) -> torch.Tensor:
    return whole[..., index.flatten() if restore else index]
