"""Judge's side of rope_allgather."""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from pkb.problems._check import ELEMENTS, Expected, Region, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# `length` counts the positions of all ranks, `length_per_rank` those of one.
PROBLEM = Problem(
    number=17,
    group="sequence-parallel",
    parallelism="sp / cp",
    origin="rotary position embedding in the half-split form of Hugging Face Llama, sequence-sharded input",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"batch": 2, "length_per_rank": 5, "heads": 3, "head_dim": 10},
        "base": {"batch": 16, "length": 16, "heads": 8, "head_dim": 64},
        "large": {"batch": 1, "length_per_rank": 16384, "heads": 32, "head_dim": 128},
        "large_batched": {"batch": 4, "length_per_rank": 4096, "heads": 32, "head_dim": 128},
    },
    check=relative(bf16=1e-2, fp32=1e-6, elements=ELEMENTS),
)

Shards = list[tuple[Any, ...]]


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor, ...]:
    batch, length, heads, dim = _shape(size, draw.world_size)
    position = draw.rank * length + torch.arange(length, device=draw.device, dtype=torch.float64)
    start = torch.zeros(batch, 1, device=draw.device, dtype=torch.float64)
    if draw.index % 2 == 1:
        start[1::2] = 1000.0
    # Frequencies and noise make the halves of cos and sin differ, so that a kernel that reads only one is found out.
    frequency = 10000.0 ** (-torch.arange(dim, device=draw.device, dtype=torch.float64) / dim)
    angle = (start + position).unsqueeze(-1) * frequency
    q, k = draw.normal(batch, length, heads, dim), draw.normal(batch, length, heads, dim)
    cos = angle.cos() + 0.3 * draw.normal(batch, length, dim)
    sin = angle.sin() + 0.3 * draw.normal(batch, length, dim)
    return q, k, cos.to(draw.dtype), sin.to(draw.dtype)


def oracle(inputs_of_all_ranks: Shards, world_size: int) -> list[tuple[Expected, Expected]]:
    q, k, cos, sin = (torch.cat([one[i].double() for one in inputs_of_all_ranks], dim=1) for i in range(4))
    answer = (_judged(_turned(q, cos, sin), world_size), _judged(_turned(k, cos, sin), world_size))
    return [answer] * world_size


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Both rotated shards arrive from W-1 peers. Own q, k, cos and sin are read once, both whole results written once.
    # Two products and a sum for each of 2 n elements.
    shape = _shape(size, world_size)
    n, num_bytes = prod(shape), dtype_bytes(dtype)
    batch, length, _, dim = shape
    return Cost(
        link_bytes=2 * (world_size - 1) * n * num_bytes,
        hbm_bytes=(2 * n + 2 * batch * length * dim + 2 * world_size * n) * num_bytes,
        flops=6 * n,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: Shards) -> Iterator[tuple[str, list[Any]]]:
    world_size, shards = len(expected), [tuple(tensor.double() for tensor in one) for one in inputs_of_all_ranks]
    q, k = (want.value for want in expected[0])
    yield "q and k exchanged", [(k, q)] * world_size
    yield "k not rotated", [(q, torch.cat([one[1] for one in shards], dim=1))] * world_size
    pairs = [(_turned_pairs(a, cos, sin), _turned_pairs(b, cos, sin)) for a, b, cos, sin in shards]
    yield "interleaved pairs in place of halves", _whole(pairs)
    yield "first half of cos and sin for both", _whole(_with_angles(shards, _first_half, _first_half))
    yield "first half of cos for both", _whole(_with_angles(shards, _first_half, _same))
    yield "sign of the second half", _whole(_with_angles(shards, _same, _second_half_negated))
    yield "turned backwards", _whole(_with_angles(shards, _same, torch.neg))
    yield "cos and sin of batch row 0 for all", _whole(_with_angles(shards, _row_0, _row_0))
    yield "cos and sin exchanged", _whole([(_turned(a, s, c), _turned(b, s, c)) for a, b, c, s in shards])
    if world_size == 1:
        return
    right = _with_angles(shards, _same, _same)
    own = [tuple(part.repeat(1, world_size, 1, 1) for part in one) for one in right]
    yield "own shard everywhere", own
    yield "shards in order of arrival", [_whole(right[r:] + right[:r])[0] for r in range(world_size)]
    stacked = tuple(torch.cat([one[i] for one in right]).reshape(q.shape) for i in range(2))
    yield "shards concatenated along dim 0", [stacked] * world_size
    _, _, cos, sin = shards[0]
    yield (
        "rank 0's cos and sin for all shards",
        _whole([(_turned(a, cos, sin), _turned(b, cos, sin)) for a, b, *_ in shards]),
    )
    late = q.clone()
    late[-1, -1] = 0
    yield "last position of the last batch row not yet there", [(late, k)] * world_size


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Halves of the last dimension turned, cos and sin the same for all heads."""
    half = x.shape[-1] // 2
    c, s = cos.unsqueeze(2), sin.unsqueeze(2)
    low, high = x[..., :half], x[..., half:]
    y = torch.empty_like(x)
    y[..., :half] = low * c[..., :half] - high * s[..., :half]
    y[..., half:] = high * c[..., half:] + low * s[..., half:]
    return y


def _turned_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    c, s = cos.unsqueeze(2), sin.unsqueeze(2)
    partner = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return x * c + partner * s


def _judged(whole: torch.Tensor, world_size: int) -> Expected:
    """Each rank's part of each batch row is judged on its own."""
    batch, length = whole.shape[0], whole.shape[1] // world_size
    regions = [
        Region(f"rank {rank} in batch row {row}", (row, slice(rank * length, (rank + 1) * length)))
        for row in range(batch)
        for rank in range(world_size)
    ]
    return Expected(whole, regions=tuple(regions))


def _with_angles(shards: Shards, change_cos: Any, change_sin: Any) -> Shards:
    """Rotated shards, with other cos and sin."""
    angles = [(change_cos(cos), change_sin(sin)) for *_, cos, sin in shards]
    return [(_turned(q, cos, sin), _turned(k, cos, sin)) for (q, k, *_), (cos, sin) in zip(shards, angles, strict=True)]


def _whole(parts: Shards) -> list[Any]:
    """What all ranks return where these are the rotated shards."""
    return [tuple(torch.cat([one[i] for one in parts], dim=1) for i in range(2))] * len(parts)


def _same(angles: torch.Tensor) -> torch.Tensor:
    return angles


def _row_0(angles: torch.Tensor) -> torch.Tensor:
    return angles[:1].expand_as(angles)


def _first_half(angles: torch.Tensor) -> torch.Tensor:
    return angles.chunk(2, dim=-1)[0].repeat(1, 1, 2)


def _second_half_negated(angles: torch.Tensor) -> torch.Tensor:
    first, second = angles.chunk(2, dim=-1)
    return torch.cat((first, -second), dim=-1)


def _shape(size: Size, world_size: int) -> tuple[int, int, int, int]:
    length = max(1, size["length"] // world_size) if "length" in size else size["length_per_rank"]
    return size["batch"], length, size["heads"], size["head_dim"]
