"""Judge's side of distributed_sample_sort.

The working dtypes are judged, bf16 and fp32; float16 is in the contract alone. Any size can be run in either dtype,
so `base` is drawn in both and link use of `large` means most in fp32. Seven values of one mode include zeros of both
signs. `tiny_few` is not in the catalogue: so few values that some ranks get none, with the modes in another order.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import exact_values
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# Rank r has `values` + r * `more` values, or those divided by W, at least 4 W, where `shared_values` is given. `modes`
# take turns with the draw: normal, seven values, ranks in reverse order, few values on rank 0, mostly ones,
# normal with odd ranks empty.
PROBLEM = Problem(
    number=85,
    group="sort",
    parallelism="dp",
    origin="textbook parallel sample sort (regular sampling)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"values": 37, "more": 11, "modes": ("normal", "seven", "reverse", "few", "ones")},
        "tiny_few": {"values": 3, "more": 2, "modes": ("few", "ones", "normal", "seven", "reverse")},
        "base": {"shared_values": 1024, "more": 0, "modes": ("normal", "normal", "normal", "odd_empty")},
        "large": {"values": 2**26, "more": -12345, "modes": ("normal", "seven", "reverse", "few", "ones")},
    },
    check=exact_values(),
)

BF16_HISTOGRAM_BYTES = 4 * 2**16
"""One 32-bit count for every bit pattern."""


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    mode = size["modes"][draw.index % len(size["modes"])]
    length = _length(size, draw.rank, draw.world_size)
    if (mode in ("seven", "odd_empty") and draw.rank % 2 == 1) or (mode == "few" and draw.rank > 0):
        length = 0
    elif mode == "few":
        length = 3
    shard = _values(mode, length, draw).to(draw.dtype)
    if draw.index % 3 == 0:
        return (shard,)
    return (shard, Group.whole(draw.world_size) if draw.index % 3 == 1 else None)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    ordered = _ordered(inputs_of_all_ranks)
    # tensor_split makes the first n mod W parts longer by one: just what the contract wants.
    return list(ordered.tensor_split(world_size))


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Values: all but 1 / W leave their rank once; radix passes over 8 bits each read and write everything. In bf16
    # histograms over all bit patterns can travel instead, with one read and one write of the values.
    length = sum(_length(size, r, world_size) for r in range(world_size)) / world_size
    num_bytes = length * dtype_bytes(dtype)
    link, hbm = num_bytes * (world_size - 1) / world_size, 2 * num_bytes * dtype_bytes(dtype)
    if dtype == "bf16":
        passes = min(2 * (world_size - 1) / world_size, 1 + 1 / world_size)
        link = min(link, passes * BF16_HISTOGRAM_BYTES)
        hbm = min(hbm, 2 * num_bytes + 2 * BF16_HISTOGRAM_BYTES)
    return Cost(link_bytes=link, hbm_bytes=hbm, flops=0.0)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    ordered = _ordered(inputs_of_all_ranks)
    signed = _by_bits(ordered)
    yield "negative values by their bits", list(signed.tensor_split(world_size))
    yield "descending", list(ordered.flip(0).tensor_split(world_size))
    if len(ordered) > 0:
        repeats = torch.cat([ordered.new_ones(1, dtype=torch.bool), ordered[1:] != ordered[:-1]])
        yield "equal values merged", list(ordered[repeats].tensor_split(world_size))
        finite = ordered.clamp(-1e30, 1e30)
        yield "infinities made finite", list(finite.tensor_split(world_size))
    if world_size == 1:
        return
    yield "sorted on each rank alone", [shard.sort().values for shard, *_ in inputs_of_all_ranks]
    if world_size > 2:
        longest = -(-len(ordered) // world_size)
        yield "shares of ceil(n / W)", [ordered[r * longest : (r + 1) * longest] for r in range(world_size)]
    share, longer = divmod(len(ordered), world_size)
    limits = [r * share + max(0, r - (world_size - longer)) for r in range(world_size + 1)]
    yield "last ranks longer", [ordered[limits[r] : limits[r + 1]] for r in range(world_size)]
    yield "lengths as they were", list(torch.split(ordered, [len(shard) for shard, *_ in inputs_of_all_ranks]))
    # Whole values go to one bucket: where the limit falls on equal ones, they all stay with the lower rank.
    ends = torch.tensor([len(part) for part in expected]).cumsum(0)[:-1]
    if len(ordered) > 0:
        last = ordered[(ends - 1).clamp(min=0).to(ordered.device)]
        whole = torch.searchsorted(ordered, last, right=True).cpu()
        yield "equal values kept together", list(ordered.tensor_split(whole))


def _ordered(inputs_of_all_ranks: list[tuple[Any, ...]]) -> torch.Tensor:
    return torch.cat([shard for shard, *_ in inputs_of_all_ranks]).sort().values


def _by_bits(values: torch.Tensor) -> torch.Tensor:
    """Values ordered as if their bits were signed integers: negative ones come out backwards."""
    integer = torch.int16 if values.dtype == torch.bfloat16 else torch.int32
    return values.view(integer).sort().values.view(values.dtype)


def _length(size: Size, rank: int, world_size: int) -> int:
    if "shared_values" in size:
        return int(max(4 * world_size, size["shared_values"] // world_size))
    return int(size["values"] + rank * size["more"])


def _values(mode: str, length: int, draw: Draw) -> torch.Tensor:
    """Values of one rank, float32 except where the mode is normal."""
    normal = draw.normal(length)
    if mode == "seven":
        # Where 0 gets the sign of the noise, -0.0 is among the values.
        return draw.integers(-3, 4, length).float().abs().copysign(normal.float())
    if mode == "reverse":
        return (4 * normal.float()).exp() - 100 * draw.rank
    if mode == "ones":
        choice = draw.uniform(0.0, 1.0, length)
        values = torch.where(choice < 0.9, 1.0, normal.float())
        # Infinities in fixed places, since a few values may have none by chance.
        values[:2] = torch.tensor([float("inf"), float("-inf")], device=draw.device)[: min(2, length)]
        return values
    return normal
