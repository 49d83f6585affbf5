"""Judge's side of fp8_reduce_scatter_grads.

History entries that set the scale are 1.7 and 1.4 times the current maximum where the catalogue's 300 and 200 are
less: the maxima of large sizes are greater. In fp32 a quarter of the gradients lies next to the middle of two codes:
by 2^-14 to 2^-12 of the value, so an error of one ulp does not matter there and a quotient of less than float32
precision does. Where shards are multiples of 1024 elements, each 1024 of them are judged alone, by a bound that one
code more or less cannot reach: elsewhere a stale tile disappears in the norm. The history is not judged by the
tolerance: it is exact.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import Check, Expected, blocks, exact, relative
from pkb.problems._draw import Draw
from pkb.problems._fp8 import (
    coarse_round_trips,
    delayed_inputs,
    nearest_e4m3,
    quotient,
    round_trip,
    scaled,
    window_scale,
    wrong_round_trips,
)
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# A rank's gradients have `shard` elements for each rank, or `total` elements.
PROBLEM = Problem(
    number=52,
    group="quantization",
    parallelism="dp / fsdp",
    origin="FP8 delayed scaling of Transformer Engine / Megatron-LM, applied to gradient reduction",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"shard": 123},
        "tiny_blocks": {"shard": 1024},
        "base": {"shard": 4096},
        "large": {"total": 2**28},
    },
    check=relative(bf16=8e-3, fp32=1e-3),
)

BLOCK = 1024


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    return delayed_inputs(draw, _num_elems(size, draw.world_size))


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[tuple[Expected, Expected]]:
    # Added up rank by rank: in float64 one rank's gradients are large.
    total = torch.zeros_like(inputs_of_all_ranks[0][0], dtype=torch.float64)
    histories = []
    for gradients, history in inputs_of_all_ranks:
        trip = round_trip(gradients, history)
        total += trip.values()
        histories.append(trip.new_history)
    return _answers(total / world_size, histories)


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Codes of one byte and the float32 scales travel. Gradients are read for the maximum and once more to be quantized,
    # codes are stored for the peers, the shard is written. Maximum, quotient, product and sum are one operation each.
    num_elems = _num_elems(size, world_size)
    shard = num_elems // world_size
    peers = world_size - 1
    return Cost(
        link_bytes=peers * (shard + 4),
        hbm_bytes=(2 * num_elems + shard) * dtype_bytes(dtype) + peers * shard,
        flops=4 * num_elems,
    )


def near_misses(
    expected: list[Any], inputs_of_all_ranks: list[tuple[torch.Tensor, torch.Tensor]]
) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    histories = [history.value for _, history in expected]
    for name, restored in wrong_round_trips(inputs_of_all_ranks):
        yield name, _answers(torch.stack(restored).mean(dim=0), histories)
    if inputs_of_all_ranks[0][0].dtype == torch.float32:
        # In bf16 the codes that it changes are within the tolerance of their norm.
        restored = coarse_round_trips(inputs_of_all_ranks)
        yield "product with a reciprocal in bf16", _answers(torch.stack(restored).mean(dim=0), histories)
    shards = [shard.value for shard, _ in expected]
    mean = torch.cat(shards)
    kept = [
        torch.cat((history[:-1], new[-1:])) for (_, history), new in zip(inputs_of_all_ranks, histories, strict=True)
    ]
    yield "history not moved on", _answers(mean, kept)
    yield "newest maximum first", _answers(mean, [history.roll(1) for history in histories])
    yield "newest maximum missing", _answers(mean, [torch.cat((h[:-1], h[-2:-1])) for h in histories])
    if world_size == 1:
        return
    yield "sum in place of the mean", _answers(mean * world_size, histories)
    yield "slices by descending rank", [(Expected(s), h) for s, (_, h) in zip(shards[::-1], expected, strict=True)]
    plain = torch.stack([gradients.double() for gradients, _ in inputs_of_all_ranks]).mean(dim=0)
    scale = window_scale(torch.stack(histories))
    yield (
        "mean quantized in place of the parts",
        _answers(scaled(nearest_e4m3(quotient(plain, scale)), scale), histories),
    )
    scale = window_scale(mean.abs())
    yield "mean in e4m3", _answers(scaled(nearest_e4m3(quotient(mean, scale)), scale), histories)
    own = [round_trip(*one).values().chunk(world_size)[rank] for rank, one in enumerate(inputs_of_all_ranks)]
    yield "own part alone", _answers(torch.cat(own), histories)
    yield "newest maximum over all ranks", _answers(mean, _with_common_maximum(histories))


def _answers(mean: torch.Tensor, histories: list[torch.Tensor]) -> list[tuple[Expected, Expected]]:
    shards = mean.chunk(len(histories))
    check = _check(shards[0].shape[0])
    return [(Expected(s, check=check), Expected(h, check=exact())) for s, h in zip(shards, histories, strict=True)]


def _check(shard: int) -> Check | None:
    if shard % BLOCK:
        return None
    return relative(bf16=8e-3, fp32=1e-3, rows=blocks(bf16=0.25, fp32=0.25, shape=(shard // BLOCK, BLOCK)))


def _with_common_maximum(histories: list[torch.Tensor]) -> list[torch.Tensor]:
    largest = torch.stack([history[-1] for history in histories]).max().reshape(1)
    return [torch.cat((history[:-1], largest)) for history in histories]


def _num_elems(size: Size, world_size: int) -> int:
    return int(size["total"] if "total" in size else size["shard"] * world_size)
