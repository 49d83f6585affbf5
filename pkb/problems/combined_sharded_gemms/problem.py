"""Judge's side of combined_sharded_gemms.

The baseline is the lean one of the two in the catalogue: an all-to-all of blocks, then two local products. The other
gathers all of x, multiplies all M rows and adds zeros in a reduce-scatter, so that a speedup would mostly be work left
out. SiLU in bf16 is inside the contract's roundings and no near miss.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import ELEMENTS, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# `m` and `hidden` are of the whole, `m_per_rank` and `hidden_per_rank` a rank's part of them.
PROBLEM = Problem(
    number=15,
    group="gemm",
    parallelism="tp / sp",
    origin="sequence-parallel tensor-parallel MLP block (Megatron-LM style gather, GEMM, SiLU, GEMM, scatter)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"m_per_rank": 7, "hidden_per_rank": 12, "inner": 50},
        "base": {"m": 1024, "hidden": 256, "inner": 512},
        "large": {"m": 16384, "hidden": 8192, "inner": 14336},
    },
    check=relative(bf16=1.5e-2, fp32=2e-3, elements=ELEMENTS),
)


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    m, hidden, inner = _dims(size, draw.world_size)
    # Weights differ by rank, so that another rank's are found out; W1 is so large that SiLU is curved.
    W1 = draw.normal(hidden, inner, scale=2 * hidden**-0.5)
    W2 = draw.normal(inner, hidden, scale=inner**-0.5)
    return draw.normal(m, hidden // draw.world_size), W1, W2


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    rows = _x(inputs_of_all_ranks).chunk(world_size)
    return [_mlp(x, W1, W2) for x, (_, W1, W2) in zip(rows, inputs_of_all_ranks, strict=True)]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # The W-1 blocks of the own rows arrive. Input and result of M/W rows, both weights and the M/W inner rows pass
    # device memory once.
    m, hidden, inner = _dims(size, world_size)
    rows, num_bytes = m / world_size, dtype_bytes(dtype)
    return Cost(
        link_bytes=rows * hidden * num_bytes * (world_size - 1) / world_size,
        hbm_bytes=(2 * rows * hidden + 2 * hidden * inner + rows * inner) * num_bytes,
        flops=4 * rows * hidden * inner,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    weights = [(W1, W2) for _, W1, W2 in inputs_of_all_ranks]
    x = _x(inputs_of_all_ranks)
    rows = x.chunk(world_size)
    hidden = [part @ W1.double() for part, (W1, _) in zip(rows, weights, strict=True)]
    second = [W2.double() for _, W2 in weights]
    yield "SiLU left out", [z @ W2 for z, W2 in zip(hidden, second, strict=True)]
    yield "ReLU in place of SiLU", [z.relu() @ W2 for z, W2 in zip(hidden, second, strict=True)]
    yield "sigmoid in place of SiLU", [z.sigmoid() @ W2 for z, W2 in zip(hidden, second, strict=True)]
    curved = [z * (1.702 * z).sigmoid() @ W2 for z, W2 in zip(hidden, second, strict=True)]
    yield "GELU in place of SiLU", curved
    if world_size == 1:
        return
    yield "rank 0's weights on every rank", [_mlp(part, *weights[0]) for part in rows]
    first = [_mlp(part, weights[0][0], W2) for part, (_, W2) in zip(rows, weights, strict=True)]
    yield "rank 0's W1 on every rank", first
    yield "rank 0's rows on every rank", [_mlp(rows[0], *own) for own in weights]
    dealt = [_mlp(x[r::world_size], *own) for r, own in enumerate(weights)]
    yield "every W-th row instead of a block", dealt
    total = torch.stack([_mlp(x, *own) for own in weights]).sum(dim=0)
    yield "results summed over ranks", list(total.chunk(world_size))
    shards = [x_local.double() for x_local, *_ in inputs_of_all_ranks]
    arrived = [torch.cat(shards[r:] + shards[:r], dim=1).chunk(world_size)[r] for r in range(world_size)]
    yield "blocks in order of arrival", [_mlp(x, *own) for x, own in zip(arrived, weights, strict=True)]
    stacked = [torch.cat([s.chunk(world_size)[r] for s in shards]).view_as(rows[r]) for r in range(world_size)]
    yield "blocks stacked along dim 0", [_mlp(x, *own) for x, own in zip(stacked, weights, strict=True)]


def _x(inputs_of_all_ranks: list[tuple[Any, ...]]) -> torch.Tensor:
    return torch.cat([x_local.double() for x_local, *_ in inputs_of_all_ranks], dim=1)


def _mlp(x: torch.Tensor, W1: torch.Tensor, W2: torch.Tensor) -> torch.Tensor:
    z = torch.mm(x, W1.double())
    return torch.mm(z / (1 + torch.exp(-z)), W2.double())


def _dims(size: Size, world_size: int) -> tuple[int, int, int]:
    """M, H and F of the whole."""
    m = size["m"] if "m" in size else size["m_per_rank"] * world_size
    hidden = size["hidden"] if "hidden" in size else size["hidden_per_rank"] * world_size
    return m, hidden, size["inner"]
