"""Judge's side of gemv_decode.

That every rank returns the same tensor is judged bit by bit: a rank's logits can only be computed by that rank, so that
the others hold copies. That rows are contiguous is in the contract and not judged, like all strides.
The baseline adds the bias within the product.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import Expected, Region, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# `words` counts the rows of the weight on all ranks, `words_per_rank` those on one. With `most_tokens` the number of
# tokens goes from 1 to that with the draw.
PROBLEM = Problem(
    number=46,
    group="gemm",
    parallelism="tp",
    origin="Megatron-LM column-parallel output layer with gathered output; vLLM's parallel LM head",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"most_tokens": 4, "hidden": 70, "words_per_rank": 37},
        "base": {"tokens": 1, "hidden": 1024, "words_per_rank": 1024},
        "large": {"tokens": 8, "hidden": 8192, "words": 128256},
    },
    check=relative(bf16=1e-2, fp32=2e-3),
    agree=True,
)


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens = size["tokens"] if "tokens" in size else 1 + draw.index % size["most_tokens"]
    hidden, width = size["hidden"], _width(size, draw.world_size)
    hidden_states = draw.shared_normal(tokens, hidden)
    bias = draw.normal(width).float() + 0.5 * draw.rank
    return hidden_states, draw.normal(width, hidden, scale=hidden**-0.5), bias.to(draw.dtype)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Expected]:
    states = torch.stack([one[0].double() for one in inputs_of_all_ranks])
    weights = torch.stack([one[1].double() for one in inputs_of_all_ranks])
    biases = torch.stack([one[2].double() for one in inputs_of_all_ranks])
    logits = (torch.einsum("sth,svh->tsv", states, weights) + biases).flatten(1)
    width = weights.shape[1]
    regions = [
        Region(f"words of rank {rank}", (slice(None), slice(rank * width, (rank + 1) * width)))
        for rank in range(world_size)
    ]
    return [Expected(logits, regions=tuple(regions))] * world_size


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # The logits of W-1 peers arrive; weight, bias and states are read once, all logits written once.
    tokens = size["tokens"] if "tokens" in size else size["most_tokens"]
    hidden, width = size["hidden"], _width(size, world_size)
    num_bytes = dtype_bytes(dtype)
    return Cost(
        link_bytes=(world_size - 1) * tokens * width * num_bytes,
        hbm_bytes=(width * hidden + width + tokens * hidden + tokens * width * world_size) * num_bytes,
        flops=2 * tokens * hidden * width,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    products = [states.double() @ weight.double().t() for states, weight, _ in inputs_of_all_ranks]
    biases = [bias.double() for *_, bias in inputs_of_all_ranks]
    parts = [product + bias for product, bias in zip(products, biases, strict=True)]
    tokens, width = products[0].shape
    yield "bias left out", [torch.cat(products, dim=1)] * world_size
    twice = [part + bias for part, bias in zip(parts, biases, strict=True)]
    yield "bias added twice", [torch.cat(twice, dim=1)] * world_size
    logits = expected[0].value
    yield "first token's logits for all", [logits[:1].expand_as(logits)] * world_size
    if world_size == 1:
        return
    stacked = torch.cat(parts).view(tokens, world_size * width)
    yield "parts concatenated along dim 0", [stacked] * world_size
    arrived = [torch.cat(parts[r:] + parts[:r], dim=1) for r in range(world_size)]
    yield "parts in order of arrival", arrived
    own_bias = [torch.cat([product + bias for product in products], dim=1) for bias in biases]
    yield "own bias for all parts", own_bias
    yield "rank 0's bias for all parts", [own_bias[0]] * world_size
    yield "words dealt out one by one", [torch.stack(parts, dim=2).flatten(1)] * world_size
    late = [torch.cat((*parts[:-1], torch.zeros_like(parts[-1])), dim=1)] * world_size
    yield "returned before the last rank's part was there", late
    row_late = torch.cat(parts, dim=1)
    row_late[-1, -width:] = 0
    yield "last rank's part of the last row not there", [row_late] * world_size
    unlike = [torch.cat(parts, dim=1) for _ in range(world_size)]
    unlike[-1] *= 1 + 2.0**-7
    yield "last rank's copy off by a rounding", unlike


def _width(size: Size, world_size: int) -> int:
    return int(size["words"] // world_size if "words" in size else size["words_per_rank"])
