"""Judge's side of grad_acc_loss.

All arguments are scalars, so sizes differ in the range of the counts, and there is no `large`. The `tiny` sizes leave
grad_loss_sum out in some draws, `base` never does: that is the one difference in their least work. In `tiny_nan` a
rank with tokens has a NaN loss. The baseline chooses the 0 of a rank without tokens on the device, where the
published one asks the host for the count first.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# Counts of tokens lie in [1, `end`).
PROBLEM = Problem(
    number=23,
    group="loss",
    parallelism="dp / sp",
    origin="VeOmni loss normalization for gradient accumulation",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"end": 4000, "always_grad_loss_sum": False},
        "tiny_nan": {"end": 4000, "always_grad_loss_sum": False, "nan": True},
        "base": {"end": 2**20 + 1, "always_grad_loss_sum": True},
    },
    check=relative(bf16=2e-2, fp32=1e-5),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    world_size, rank, index = draw.world_size, draw.rank, draw.index
    counts = draw.shared_integers(1, size["end"], world_size)
    loss = draw.uniform(1.0 + rank, 4.0 + rank)
    if world_size > 1:
        without_tokens = index % world_size
        counts[without_tokens] = 0
        if rank == without_tokens:
            loss.fill_(float("nan") if index // 2 % 2 == 0 else float("inf"))
    if size.get("nan", False) and rank == (index + 1) % world_size:
        loss.fill_(float("nan"))
    total = counts.sum()
    grads = draw.uniform(0.5, 1.5), draw.uniform(0.5, 1.5) / total
    arguments = loss.to(draw.dtype), counts[rank].clone(), total, grads[0].to(draw.dtype)
    if size["always_grad_loss_sum"] or index % 3 == 0:
        return *arguments, grads[1].to(draw.dtype)
    return (*arguments, None) if index % 3 == 1 else arguments


def oracle(
    inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    loss = torch.stack([loss.double() for loss, *_ in inputs_of_all_ranks])
    counts = torch.stack([count for _, count, *_ in inputs_of_all_ranks])
    loss_sum = loss[counts > 0] @ counts[counts > 0].double()
    grads = [_grad(arguments, arguments) for arguments in inputs_of_all_ranks]
    return [(loss_sum / inputs_of_all_ranks[0][2], loss_sum, grad) for grad in grads]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # One float32 goes to every peer; a handful of scalars is read and three are written.
    num_scalars = 5 + size["always_grad_loss_sum"]
    return Cost(
        link_bytes=4.0 * (world_size - 1),
        hbm_bytes=16.0 + num_scalars * dtype_bytes(dtype),
        flops=5.0 + world_size,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size, total = len(expected), inputs_of_all_ranks[0][2]
    loss = torch.stack([loss.double() for loss, *_ in inputs_of_all_ranks])
    counts = torch.stack([count.double() for _, count, *_ in inputs_of_all_ranks])
    grads = [grad for _, _, grad in expected]

    def with_sum(loss_sum: torch.Tensor) -> list[Any]:
        return [(loss_sum / total, loss_sum, grad) for grad in grads]

    yield "NaN loss taken for 0 although there are tokens", with_sum(loss.nan_to_num(0.0, 0.0) @ counts)
    yield "normalized loss and sum exchanged", [(b, a, grad) for a, b, grad in expected]
    yield "gradient not divided by the number of tokens", [(a, b, grad * total) for a, b, grad in expected]
    if any(len(arguments) == 5 and arguments[4] is not None for arguments in inputs_of_all_ranks):
        alone = [_grad(arguments, arguments[:4]) for arguments in inputs_of_all_ranks]
        yield "grad_loss_sum left out", [(a, b, grad) for (a, b, _), grad in zip(expected, alone, strict=True)]
    if inputs_of_all_ranks[0][0].dtype == torch.float32:
        # In bf16 the contract permits it.
        yield "counts rounded to bf16", with_sum(torch.where(counts > 0, loss * counts.bfloat16().double(), 0.0).sum())
    if world_size == 1:
        return
    yield "loss without tokens multiplied by 0", with_sum((loss * counts).sum())
    unweighted = torch.where(counts > 0, loss, 0.0).mean()
    if float((unweighted * total / expected[0][1] - 1).nan_to_num(1.0).abs()) > 0.05:
        # Else the weights happen to make no difference.
        yield "mean of the ranks' means", [(unweighted, unweighted * total, grad) for grad in grads]
    own = torch.where(counts > 0, loss * counts, 0.0)
    yield "own tokens alone", [(one / total, one, grad) for one, grad in zip(own, grads, strict=True)]
    yield (
        "sum divided by the number of own tokens",
        [(b / count.clamp_min(1), b, grad) for (_, b, grad), count in zip(expected, counts, strict=True)],
    )
    first = [_grad(arguments, inputs_of_all_ranks[0]) for arguments in inputs_of_all_ranks]
    yield "rank 0's gradients on every rank", [(a, b, grad) for (a, b, _), grad in zip(expected, first, strict=True)]
    yield "gradient divided by the number of ranks", [(a, b, grad / world_size) for a, b, grad in expected]


def _grad(arguments: tuple[Any, ...], gradients: tuple[Any, ...]) -> torch.Tensor:
    """Gradient of the loss, with the counts of one rank and the gradients of another."""
    count, total = arguments[1].double(), arguments[2].double()
    result: torch.Tensor = gradients[3].double() * count / total
    if len(gradients) == 5 and gradients[4] is not None:
        result = result + gradients[4].double() * count
    return result
