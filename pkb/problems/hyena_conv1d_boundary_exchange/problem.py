"""Judge's side of hyena_conv1d_boundary_exchange.

The catalogue's optional K = 128 is the size `large_wide`.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from pkb.problems._check import Expected, Region, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# Without `batch` it is 1 or 2 with the draw.
PROBLEM = Problem(
    number=71,
    group="convolution",
    parallelism="cp (zigzag)",
    origin="Savanna / Evo 2 context-parallel Hyena short convolution",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"hidden": 6, "chunk": 9, "taps": 4},
        "tiny_whole": {"hidden": 6, "chunk": 4, "taps": 5},
        "base": {"batch": 1, "hidden": 1024, "chunk": 1024, "taps": 7},
        "large": {"batch": 1, "hidden": 4096, "chunk": 16384, "taps": 7},
        "large_wide": {"batch": 1, "hidden": 4096, "chunk": 16384, "taps": 128},
    },
    check=relative(bf16=1e-2, fp32=1e-5),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    index = draw.index
    x = draw.normal(size.get("batch", 1 + index % 2), size["hidden"], 2 * size["chunk"])
    weight = draw.normal(size["hidden"], 1, size["taps"])
    if index % 3 == 0:
        return x, weight
    return x, weight, Group.whole(draw.world_size) if index % 3 == 1 else None


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Expected]:
    width = inputs_of_all_ranks[0][1].shape[-1] - 1
    sequence = torch.cat(_in_order(inputs_of_all_ranks), dim=-1)
    chunk = sequence.shape[-1] // (2 * world_size)
    regions = (
        Region("start of the first chunk", (..., slice(0, width))),
        Region("start of the second chunk", (..., slice(chunk, chunk + width))),
    )
    return [Expected(y, regions=regions) for y in _answer(sequence, inputs_of_all_ranks)]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Each of a rank's two tails goes to one neighbor; with two ranks one of them has a chunk of the sender's behind it
    # or nothing. x is read and y written once; a tap is a multiplication and an addition.
    rows, num_bytes = size.get("batch", 1.5) * size["hidden"], dtype_bytes(dtype)
    num_elems = rows * 2 * size["chunk"]
    return Cost(
        link_bytes=min(2, world_size - 1) * rows * (size["taps"] - 1) * num_bytes,
        hbm_bytes=(2 * num_elems + size["hidden"] * size["taps"]) * num_bytes,
        flops=2 * size["taps"] * num_elems,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    ranks, calls = range(world_size), inputs_of_all_ranks
    chunks = _in_order(calls)
    sequence = torch.cat(chunks, dim=-1)
    width = calls[0][1].shape[-1] - 1
    nothing = torch.zeros_like(chunks[0])

    def answer(before: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
        """Convolution of each rank's chunks behind the given ones."""
        return [
            torch.cat([_convolved(torch.cat(pair, dim=-1), weight, nothing.shape[-1]) for pair in pairs], dim=-1)
            for pairs, (_, weight, *_) in zip(
                [
                    ((one, chunks[r]), (two, chunks[2 * world_size - 1 - r]))
                    for r, (one, two) in zip(ranks, before, strict=True)
                ],
                calls,
                strict=True,
            )
        ]

    right = [(chunks[r - 1] if r > 0 else nothing, chunks[2 * world_size - 2 - r]) for r in ranks]
    yield "zeros before every chunk", answer([(nothing, nothing)] * world_size)
    yield "zeros before the second chunk of the last rank", answer([*right[:-1], (right[-1][0], nothing)])
    yield "sequence closed to a ring", answer([(chunks[-1], right[0][1]), *right[1:]])
    heads = [tuple(one.roll(width, -1) for one in pair) for pair in right]
    yield "first columns of the chunk before", answer([(one, two) for one, two in heads])
    yield "halo one column off", answer([(one.roll(1, -1), two.roll(1, -1)) for one, two in right])
    yield "taps reversed", _answer(sequence, [(x, weight.flip(-1)) for x, weight, *_ in calls])
    later = sequence.flip(-1)
    turned = [torch.cat([part.flip(-1) for part in y.chunk(2, dim=-1)], dim=-1) for y in _answer(later, calls, True)]
    yield "later positions in place of earlier ones", turned
    yield "chunks exchanged", [torch.cat(one.value.chunk(2, dim=-1)[::-1], dim=-1) for one in expected]
    if world_size == 1:
        return
    yield "second chunk behind the own first", answer([(one, chunks[r]) for r, (one, _) in enumerate(right)])
    from_left = [(one, chunks[2 * world_size - r if r > 0 else 0]) for r, (one, _) in enumerate(right)]
    yield "second chunk's halo from the rank before", answer(from_left)
    yield "halos exchanged", answer([(two, one) for one, two in right])
    yield "another rank's weight", _answer(sequence, [(x, calls[r - 1][1]) for r, (x, *_) in enumerate(calls)])
    plain = torch.cat([x.double() for x, *_ in calls], dim=-1)
    yield (
        "ranks' columns taken for consecutive ones",
        [_convolved(plain[..., : (r + 1) * 2 * nothing.shape[-1]], calls[r][1], 2 * nothing.shape[-1]) for r in ranks],
    )


def _in_order(inputs_of_all_ranks: list[tuple[Any, ...]]) -> list[torch.Tensor]:
    """The chunks of all ranks in the order of the sequence, float64."""
    pairs = [x.double().chunk(2, dim=-1) for x, *_ in inputs_of_all_ranks]
    return [first for first, _ in pairs] + [second for _, second in pairs[::-1]]


def _answer(
    sequence: torch.Tensor, inputs_of_all_ranks: list[tuple[Any, ...]], is_backwards: bool = False
) -> list[torch.Tensor]:
    """Each rank's chunks of the convolved sequence; `is_backwards`: the sequence has the last position first."""
    num_chunks = 2 * len(inputs_of_all_ranks)
    chunk = sequence.shape[-1] // num_chunks
    found = []
    for rank, (_, weight, *_) in enumerate(inputs_of_all_ranks):
        places = (rank, num_chunks - 1 - rank)
        ends = [(num_chunks - place if is_backwards else place + 1) * chunk for place in places]
        found.append(torch.cat([_convolved(sequence[..., :end], weight, chunk) for end in ends], dim=-1))
    return found


def _convolved(sequence: torch.Tensor, weight: torch.Tensor, count: int) -> torch.Tensor:
    """The last `count` columns of the convolution of a sequence with nothing before it."""
    taps = weight.double().squeeze(1)
    width = taps.shape[-1] - 1
    padded = F.pad(sequence[..., -(count + width) :], (width, 0))[..., -(count + width) :]
    y = torch.zeros_like(padded[..., :count])
    for j in range(width + 1):
        y += taps[:, j : j + 1] * padded[..., j : j + count]
    return y
