"""Judge's side of moe_epgroupgemm_lora_backward."""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from pkb.problems._check import ELEMENTS, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

PROBLEM = Problem(
    number=30,
    group="collective",
    parallelism="ep",
    origin="gradient sync of an expert-parallel grouped GEMM with shared LoRA factors (xorl / VeOmni EPGroupGemm)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"shapes": ((3, 29), (4, 29), (23, 3))},
        "tiny_equal": {"shapes": ((5, 11), (5, 11), (11, 5))},
        "base": {"shapes": ((8, 1024), (8, 1024), (1024, 8))},
        "large": {"shapes": ((2048, 8192), (2048, 8192), (8192, 2048))},
    },
    check=relative(bf16=8e-3, fp32=1e-6, elements=ELEMENTS),
    exact_trial=True,
    agree=True,
    may_write=("grad_fc1_1_lora_A", "grad_fc1_2_lora_A", "grad_fc2_lora_B"),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    # Ranks weigh differently, so that a rank that is left out or counted twice shows.
    scale = 4.0 ** (draw.rank % 3)
    grads = [draw.exact_terms(*s) if draw.exact else draw.normal(*s, scale=scale) for s in size["shapes"]]
    if draw.index % 3 == 0:
        return tuple(grads)
    return (*grads, Group.whole(draw.world_size) if draw.index % 3 == 1 else None)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Any]:
    totals = tuple(torch.stack([one[i].double() for one in inputs_of_all_ranks]).sum(dim=0) for i in range(3))
    return [totals] * world_size


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # An all-reduce by slices, or added by a switch; gradients are read once and written once.
    num_elems, share = sum(map(prod, size["shapes"])), (world_size - 1) / world_size
    num_bytes = num_elems * dtype_bytes(dtype)
    return Cost(
        link_bytes=num_bytes * min(2 * share, 1 + 1 / world_size),
        hbm_bytes=2 * num_bytes,
        flops=num_elems * share,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    first, second, third = expected[0]
    yield "first two exchanged", [(second, first, third)] * world_size
    yield "third transposed", [(first, second, third.t().reshape(third.shape))] * world_size
    if world_size == 1:
        return
    yield "means instead of sums", [tuple(total / world_size for total in one) for one in expected]
    own = [tuple(grad.double() for grad in one[:3]) for one in inputs_of_all_ranks]
    mixed = [(first, second, grad) for _, _, grad in own]
    yield "third not summed", mixed
    tails = [tuple(_with_tail_of(t, g) for t, g in zip(*pair, strict=True)) for pair in zip(expected, own, strict=True)]
    yield "elements beyond a multiple of 8 not summed", tails
    # A peer read gradients to which the next rank had already added the one before.
    raced = [tuple(t + g for t, g in zip(expected[r], own[r - 1], strict=True)) for r in range(world_size)]
    yield "a peer's sums read half updated", raced
    yield "every sum counted twice", [tuple(2 * total for total in one) for one in expected]
    yield "bits that differ by rank", [tuple(t * (1 + r * 2.0**-7) for t in one) for r, one in enumerate(expected)]


def _with_tail_of(total: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    whole = total.numel() // 8 * 8
    return torch.cat((total.flatten()[:whole], own.flatten()[whole:])).view_as(total)
