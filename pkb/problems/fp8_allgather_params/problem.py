"""Judge's side of fp8_allgather_params.

Inputs are those of fp8_reduce_scatter_grads, with the shard in place of the gradients: in fp32 a quarter of them lies
next to the middle of two codes, and history entries that set the scale grow with the maximum. Where shards are
multiples of 1024 elements, each 1024 of them are judged alone too.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import Check, Expected, blocks, every, exact, mostly_equal, relative
from pkb.problems._draw import Draw
from pkb.problems._fp8 import coarse_round_trips, delayed_inputs, round_trip, scaled, wrong_round_trips
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# A rank's shard has `shard` elements, or a W-th of `total`.
PROBLEM = Problem(
    number=53,
    group="quantization",
    parallelism="fsdp",
    origin="FP8 parameter all-gather (Transformer Engine / Megatron-LM / torchao FSDP2)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"shard": 301},
        "tiny_blocks": {"shard": 1024},
        "base": {"shard": 4096},
        "large": {"total": 2**28},
    },
    check=every(relative(bf16=4e-3, fp32=1e-3), mostly_equal(share=1e-3)),
)

BLOCK = 1024


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    return delayed_inputs(draw, _shard(size, draw.world_size))


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[tuple[Expected, Expected]]:
    trips = [round_trip(shard, history) for shard, history in inputs_of_all_ranks]
    return _answers([trip.values() for trip in trips], [trip.new_history for trip in trips])


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Codes of one byte and the float32 scales of all peers arrive. The shard is read for the maximum and once more to
    # be quantized, all parts are written. Per element of the result: maximum, quotient, rounding and product.
    shard = _shard(size, world_size)
    return Cost(
        link_bytes=(world_size - 1) * (shard + 4),
        hbm_bytes=(2 + world_size) * shard * dtype_bytes(dtype),
        flops=4 * world_size * shard,
    )


def near_misses(
    expected: list[Any], inputs_of_all_ranks: list[tuple[torch.Tensor, torch.Tensor]]
) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    histories = [history.value for _, history in expected]
    trips = [round_trip(shard, history) for shard, history in inputs_of_all_ranks]
    right = [trip.values() for trip in trips]
    for name, restored in wrong_round_trips(inputs_of_all_ranks):
        yield name, _answers(restored, histories)
    yield "product with a reciprocal in bf16", _answers(coarse_round_trips(inputs_of_all_ranks), histories)
    kept = [torch.cat((old[:-1], new[-1:])) for (_, old), new in zip(inputs_of_all_ranks, histories, strict=True)]
    yield "history not moved on", _answers(right, kept)
    yield "newest maximum first", _answers(right, [history.roll(1) for history in histories])
    if world_size == 1:
        return
    own_scale = [_full([scaled(trip.codes, own.scale) for trip in trips]) for own in trips]
    yield "own scale for all parts", [(full, h) for full, (_, h) in zip(own_scale, expected, strict=True)]
    plain = [x.double() for x, _ in inputs_of_all_ranks]
    own_plain = [_full([*right[:r], plain[r], *right[r + 1 :]]) for r in range(world_size)]
    yield "own part not quantized", [(full, h) for full, (_, h) in zip(own_plain, expected, strict=True)]
    yield "parts by descending rank", _answers(right[::-1], histories)
    turned = [_full(right[r:] + right[:r]) for r in range(world_size)]
    yield "parts in order of arrival", [(full, h) for full, (_, h) in zip(turned, expected, strict=True)]
    yield "rank 0's history on every rank", _answers(right, [histories[0]] * world_size)


def _answers(restored: list[torch.Tensor], histories: list[torch.Tensor]) -> list[tuple[Expected, Expected]]:
    full = _full(restored)
    return [(full, Expected(history, check=exact())) for history in histories]


def _full(restored: list[torch.Tensor]) -> Expected:
    full = torch.cat(restored)
    return Expected(full, check=_check(len(restored[0]), len(full)), agree=True)


def _check(shard: int, length: int) -> Check | None:
    if shard % BLOCK:
        return None
    # One code more or less cannot reach the bound on blocks.
    rows = blocks(bf16=0.25, fp32=0.25, shape=(length // BLOCK, BLOCK))
    return every(relative(bf16=4e-3, fp32=1e-3, rows=rows), mostly_equal(share=1e-3))


def _shard(size: Size, world_size: int) -> int:
    return int(size["shard"] if "shard" in size else size["total"] // world_size)
