"""Judge's side of ulysses_all_to_all_tensor_primitive.

The transposed views of odd tiny draws have their first and last dimensions exchanged in memory. Contiguity of the
result itself is not judged. `tiny_flat` is not in the catalogue: one dimension alone, and a negative one.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from pkb.problems._check import exact
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# Each of `layouts` is (shape, scatter_dim, gather_dim); they take turns with the draw.
PROBLEM = Problem(
    number=33,
    group="sequence-parallel",
    parallelism="sp",
    origin="VeOmni sequence parallel / DeepSpeed-Ulysses all-to-all",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {
            "layouts": (
                ((16, 5), 0, 1),
                ((3, 8, 7), 1, 0),
                ((2, 3, 16, 5), 2, 1),
                ((3, 2, 4, 8), -1, -3),
                ((8, 3), 0, 0),
                ((5, 3, 8), 2, -2),
            ),
            "views": True,
        },
        "tiny_flat": {"layouts": (((24,), 0, -1), ((3, 16), 1, -1)), "views": True},
        "base": {"layouts": (((1024, 1024), 0, 1),)},
        "large": {"layouts": (((16384, 64, 128), 1, 0),)},
    },
    check=exact(),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    shape, scatter_dim, gather_dim = size["layouts"][draw.index % len(size["layouts"])]
    if size.get("views", False) and draw.index % 2 == 1:
        x = draw.normal(*(shape[-1], *shape[1:-1], shape[0])).transpose(0, -1)
    else:
        x = draw.normal(*shape)
    if draw.index % 3 == 0:
        return x, scatter_dim, gather_dim
    return x, scatter_dim, gather_dim, Group.whole(draw.world_size) if draw.index % 3 == 1 else None


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    return [torch.cat(parts, dim=inputs_of_all_ranks[0][2]) for parts in _received(inputs_of_all_ranks)]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # All parts but the own one leave, as many arrive; everything is read once and written once.
    num_bytes = prod(size["layouts"][0][0]) * dtype_bytes(dtype)
    return Cost(link_bytes=num_bytes * (world_size - 1) / world_size, hbm_bytes=2 * num_bytes, flops=0.0)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    x, scatter_dim, gather_dim = inputs_of_all_ranks[0][:3]
    ranks = range(world_size)
    if not x.is_contiguous():
        flat = [(_as_it_lies(one), *rest) for one, *rest in inputs_of_all_ranks]
        yield "elements of a view read in the order of memory", oracle(flat, world_size)
    got = _received(inputs_of_all_ranks)
    own = [[torch.zeros_like(b) if s == r else b for s, b in enumerate(got[r])] for r in ranks]
    yield "own part not written", [torch.cat(parts, dim=gather_dim) for parts in own]
    if world_size == 1:
        return
    turned = [parts[r:] + parts[:r] for r, parts in enumerate(got)]
    yield "parts in order of arrival", [torch.cat(parts, dim=gather_dim) for parts in turned]
    same = [got[s][s] for s in ranks]
    yield "part of the sender's own number", [torch.cat(same, dim=gather_dim)] * world_size
    c = x.shape[scatter_dim] // world_size
    dealt = [
        [
            one.unflatten(scatter_dim, (c, world_size)).select(_inner(one, scatter_dim), r)
            for one, *_ in inputs_of_all_ranks
        ]
        for r in ranks
    ]
    if c > 1:
        yield "scattered dimension dealt out one by one", [torch.cat(parts, dim=gather_dim) for parts in dealt]
    if gather_dim % x.dim() != 0:
        yield "received parts one behind the other", [torch.cat(parts).view(expected[0].shape) for parts in got]
    if gather_dim % x.dim() != scatter_dim % x.dim():
        joined = [torch.cat(parts, dim=scatter_dim).reshape(expected[0].shape) for parts in got]
        yield "joined along the scattered dimension", joined


def _received(inputs_of_all_ranks: list[tuple[Any, ...]]) -> list[list[torch.Tensor]]:
    """For each rank, the parts that all ranks send to it."""
    world_size, scatter_dim = len(inputs_of_all_ranks), inputs_of_all_ranks[0][1]
    c = inputs_of_all_ranks[0][0].shape[scatter_dim] // world_size
    return [[x.narrow(scatter_dim, r * c, c) for x, *_ in inputs_of_all_ranks] for r in range(world_size)]


def _inner(x: torch.Tensor, dim: int) -> int:
    """Where the second half of an unflattened dimension lies."""
    return dim % x.dim() + 1


def _as_it_lies(x: torch.Tensor) -> torch.Tensor:
    """The elements of a transposed tensor in the order of its memory, in its shape."""
    return x.transpose(0, -1).reshape(x.shape)
