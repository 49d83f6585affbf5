"""Judge's side of ulysses_all_gather_variable_primitive.

Inputs are contiguous: the catalogue speaks of no views here. For W = 1 the input may be returned. The lengths of a
draw are never all equal (W > 1). At base and large sizes they come in pairs of mean + d and mean - d, dealt out at
random, so that their sum is fixed.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from pkb.problems._check import exact
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# A rank's tensor is [*before, m, *after] with m between mean - spread and mean + spread, joined along m. Without
# these, one size of `shape` is replaced by a length up to `most`; `dims` take turns with the draw.
PROBLEM = Problem(
    number=35,
    group="collective",
    parallelism="sp",
    origin="VeOmni sequence parallel (variable-length gather)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"shape": (3, 4, 5), "dims": (0, 1, -1, 2), "most": 8},
        "base": {"before": (), "after": (1024,), "mean": 1024, "spread": 256},
        "large": {"before": (), "after": (8192,), "mean": 8192, "spread": 4096},
        "large_dim1": {"before": (64,), "after": (1024,), "mean": 1024, "spread": 512},
    },
    check=exact(),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    if "shape" in size:
        shape, gather_dim = list(size["shape"]), size["dims"][draw.index % len(size["dims"])]
        shape[gather_dim] = int(_small_lengths(size["most"], draw)[draw.rank])
    else:
        gather_dim = len(size["before"])
        shape = [*size["before"], int(_paired_lengths(size, draw)[draw.rank]), *size["after"]]
    x = draw.normal(*shape)
    if draw.index % 4 == 0:
        return x, gather_dim
    return x, gather_dim, Group.whole(draw.world_size) if draw.index % 2 == 1 else None


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    joined = torch.cat([x for x, *_ in inputs_of_all_ranks], dim=inputs_of_all_ranks[0][1])
    return [joined] * world_size


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Everything but the own part arrives, counted for a rank of mean length; it is read, all parts are written. The
    # lengths themselves are a few bytes.
    num_elems = prod(size["shape"]) if "shape" in size else prod(size["before"]) * size["mean"] * prod(size["after"])
    num_bytes = num_elems * dtype_bytes(dtype)
    return Cost(link_bytes=(world_size - 1) * num_bytes, hbm_bytes=(1 + world_size) * num_bytes, flops=0.0)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size, gather_dim = len(expected), inputs_of_all_ranks[0][1]
    xs = [x for x, *_ in inputs_of_all_ranks]
    ranks = range(world_size)
    own = [[torch.zeros_like(x) if s == r else x for s, x in enumerate(xs)] for r in ranks]
    yield "own part not written", [torch.cat(parts, dim=gather_dim) for parts in own]
    if world_size == 1:
        return
    yield "parts in order of arrival", [torch.cat(xs[r:] + xs[:r], dim=gather_dim) for r in ranks]
    yield "parts by descending rank", [torch.cat(xs[::-1], dim=gather_dim)] * world_size
    yield "own length for all", [_resized(xs, [x.shape[gather_dim]] * world_size, gather_dim) for x in xs]
    longest = max(x.shape[gather_dim] for x in xs)
    yield "padding to the longest kept", [_resized(xs, [longest] * world_size, gather_dim)] * world_size
    # The sum of the lengths, so the shape of the result, may be right although the lengths are another rank's.
    lengths = [x.shape[gather_dim] for x in xs]
    yield "lengths of the next rank", [_resized(xs, lengths[1:] + lengths[:1], gather_dim)] * world_size
    if gather_dim != 0:
        flat = torch.cat([x.flatten() for x in xs]).view(expected[0].shape)
        yield "parts one behind the other in memory", [flat] * world_size


def _resized(xs: list[torch.Tensor], lengths: list[int], dim: int) -> torch.Tensor:
    """The parts cut to, or filled with zeros up to, other lengths, joined."""
    parts = []
    for x, length in zip(xs, lengths, strict=True):
        front = x.movedim(dim, 0)
        part = front.new_zeros((length, *front.shape[1:]))
        kept = min(length, front.shape[0])
        part[:kept] = front[:kept]
        parts.append(part)
    return torch.cat(parts).movedim(0, dim)


def _small_lengths(most: int, draw: Draw) -> torch.Tensor:
    """Lengths of all ranks up to `most`: with the draw, the first or the last rank is empty, never all of them."""
    world_size, index = draw.world_size, draw.index
    lengths = draw.shared_integers(0, most + 1, world_size)
    # At least one length is not 0: that of a rank which no draw of this kind empties.
    kept = -1 if index % 3 == 1 else 0
    lengths[kept] = draw.shared_integers(1, most + 1, 1)[0]
    if world_size > 1 and index % 3 > 0:
        lengths[0 if index % 3 == 1 else -1] = 0
    if world_size > 1 and bool((lengths == lengths[kept]).all()):
        lengths[kept] = lengths[kept] % most + 1
    return lengths


def _paired_lengths(size: Size, draw: Draw) -> torch.Tensor:
    """Lengths of all ranks that add up to W times the mean and are not all equal."""
    mean = size["mean"]
    if draw.world_size == 1:
        return torch.tensor([mean], device=draw.device)
    off = draw.shared_integers(1, size["spread"] + 1, draw.world_size // 2)
    return torch.cat([mean + off, mean - off])[draw.shared_permutation(draw.world_size)]
