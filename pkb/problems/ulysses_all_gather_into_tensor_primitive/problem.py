"""Judge's side of ulysses_all_gather_into_tensor_primitive.

Odd draws of the tiny sizes pass a strided view: dimensions first and last exchanged, or every other element where
there is only one dimension. Contiguity of the result itself is not judged. `tiny_flat` is not in the catalogue: parts
of one element, and strided ones of 13.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from pkb.problems._check import exact
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# `shapes` take turns with the draw.
PROBLEM = Problem(
    number=34,
    group="collective",
    parallelism="sp",
    origin="VeOmni sequence parallel",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"shapes": ((7, 5), (3, 4, 5), (13,), (1, 2, 3, 7), (2, 65)), "strided": True},
        "tiny_flat": {"shapes": ((1,), (13,)), "strided": True},
        "base": {"shapes": ((1024, 1024),)},
        "large": {"shapes": ((8192, 8192),)},
    },
    check=exact(),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    shape = size["shapes"][draw.index % len(size["shapes"])]
    is_strided = size.get("strided", False) and draw.index % 2 == 1
    x = _strided_normal(draw, shape) if is_strided else draw.normal(*shape)
    # -0.0 tells a copy from a sum with zeros, an infinity from a product with zeros or a detour over another format.
    place = draw.integers(0, prod(shape), 1)
    x[torch.unravel_index(place, shape)] = -0.0 if draw.index % 2 else float("inf")
    if draw.index % 3 == 0:
        return (x,)
    return (x, Group.whole(draw.world_size) if draw.index % 3 == 1 else None)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    return [torch.cat([x for x, *_ in inputs_of_all_ranks])] * world_size


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # W-1 tensors arrive; the own one is read, all W are written.
    num_bytes = prod(size["shapes"][0]) * dtype_bytes(dtype)
    return Cost(link_bytes=(world_size - 1) * num_bytes, hbm_bytes=(1 + world_size) * num_bytes, flops=0.0)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    xs = [x for x, *_ in inputs_of_all_ranks]
    ranks = range(world_size)
    own = [[torch.zeros_like(x) if s == r else x for s, x in enumerate(xs)] for r in ranks]
    yield "own part not written", [torch.cat(parts) for parts in own]
    if not all(x.is_contiguous() for x in xs):
        yield "elements of a view read in the order of memory", [torch.cat([_as_it_lies(x) for x in xs])] * world_size
    if any(bool(((x == 0) & x.signbit()).any()) for x in xs):
        yield "sign of zero lost", [joined + torch.zeros_like(joined) for joined in expected]
    if xs[0].numel() * xs[0].element_size() % 16:
        yield "tails of parts not written", [torch.cat([_without_tail(x) for x in xs])] * world_size
    if world_size == 1:
        return
    yield "parts in order of arrival", [torch.cat(xs[r:] + xs[:r]) for r in ranks]
    yield "own part everywhere", [torch.cat([x] * world_size) for x in xs]
    if xs[0].dim() > 1:
        wrong = torch.cat(xs, dim=-1).reshape(expected[0].shape)
        yield "joined along the last dimension", [wrong] * world_size


def _strided_normal(draw: Draw, shape: tuple[int, ...]) -> torch.Tensor:
    if len(shape) == 1:
        return draw.normal(2 * shape[0])[::2]
    return draw.normal(shape[-1], *shape[1:-1], shape[0]).transpose(0, -1)


def _as_it_lies(x: torch.Tensor) -> torch.Tensor:
    """The first elements of a view's memory, in its shape."""
    return torch.as_strided(x, x.shape, torch.empty(x.shape).stride())


def _without_tail(x: torch.Tensor) -> torch.Tensor:
    """What stores of 16 bytes leave out: zeros behind the last whole one."""
    flat = x.flatten().clone()
    elems = 16 // flat.element_size()
    flat[flat.numel() // elems * elems :] = 0
    return flat.view(x.shape)
