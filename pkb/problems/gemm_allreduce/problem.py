"""Judge's side of gemm_allreduce.

The baseline adds up into the product itself: a clone of this fresh tensor would be overhead that nobody has to pay.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import ELEMENTS, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# `k` is the depth of one rank.
PROBLEM = Problem(
    number=13,
    group="gemm",
    parallelism="tp",
    origin="Megatron-LM RowParallelLinear (forward)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"m": 37, "k": 24, "n": 19},
        "base": {"m": 1024, "k": 512, "n": 1024},
        "large": {"m": 16384, "k": 3584, "n": 8192},
    },
    check=relative(bf16=1e-2, fp32=2e-3, elements=ELEMENTS),
    exact_trial=True,
)


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    m, k, n = size["m"], size["k"], size["n"]
    if draw.exact:
        num_terms = k * draw.world_size
        return draw.exact_factors(m, k, num_terms=num_terms), draw.exact_factors(k, n, num_terms=num_terms)
    # The rank factor keeps the ranks' parts apart.
    return draw.normal(m, k), draw.normal(k, n, scale=(1 + draw.rank) * k**-0.5)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    # One deep product in place of a sum of products.
    A = torch.cat([A_local.double() for A_local, _ in inputs_of_all_ranks], dim=1)
    B = torch.cat([B_local.double() for _, B_local in inputs_of_all_ranks], dim=0)
    return [A.mm(B)] * world_size


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # The product is all-reduced by slices, 2 (W-1)/W of it a rank, or 1 + 1/W with a switch that adds; A, B and the
    # result pass device memory once. Each element is added W-1 times, by one of W ranks.
    m, k, n = size["m"], size["k"], size["n"]
    num_bytes = dtype_bytes(dtype)
    return Cost(
        link_bytes=m * n * num_bytes * min(2 * (world_size - 1) / world_size, 1 + 1 / world_size),
        hbm_bytes=(m * k + k * n + m * n) * num_bytes,
        flops=2 * m * n * k + m * n * (world_size - 1) / world_size,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    yield "workspace of an equal call not cleared", [2 * want for want in expected]
    if world_size == 1:
        return
    total = expected[0]
    own = [A.double().mm(B.double()) for A, B in inputs_of_all_ranks]
    yield "own product alone", own
    yield "mean instead of sum", [total / world_size] * world_size
    yield "own product added twice", [total + part for part in own]
    yield "own product missing", [total - part for part in own]
    yield "rank 0's product missing", [total - own[0]] * world_size
    last_row = torch.cat((total[:-1], total[-1:] - own[-1][-1:]))
    yield "last rank's product missing in the last row", [last_row] * world_size
    seams = torch.cat((total[:, :-1], own[0][:, -1:]), dim=1)
    yield "last column not summed", [seams] * world_size
    A = torch.stack([A_local.double() for A_local, _ in inputs_of_all_ranks]).sum(dim=0)
    B = torch.stack([B_local.double() for _, B_local in inputs_of_all_ranks]).sum(dim=0)
    yield "product of the sums", [A @ B] * world_size
