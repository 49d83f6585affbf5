"""Judge's side of deepmd_kalman_filter_optimizer.

The contract fixes float64; of the two working dtypes it is judged under fp32. Each weight and each P' is held to 1e-9
of its norm and to 1e-6 of its step (w' - w, P' lambda - P), whichever is less: both bounds are one, on the norm of the
error. `error` is kept away from 0, where the weights would not move. P is symmetric bit by bit. The oracle stores
outer products; the denominator is the sum of the quadratic forms of all blocks.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import Check, Expected, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size

# `layouts` are sizes of a rank's blocks, in turn by rank and draw. G has `columns` columns, as many as rows by default.
PROBLEM = Problem(
    number=63,
    group="optimizer",
    parallelism="dp (blocks over ranks)",
    origin="DeePMD-kit's LKF optimizer (RLEKF)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"layouts": ((7, 12, 5), (24,), (1, 10, 13), (16, 8))},
        "base": {"layouts": ((1024,) * 8,)},
        "large": {"layouts": ((10240,) * 4,), "columns": 64, "scale": 0.05},
    },
    check=relative(bf16=1e-9, fp32=1e-9),
    dtypes=("fp32",),
)

Arguments = tuple[Any, ...]
Weights = list[torch.Tensor]

NUE = 0.9987
SMALLEST_TOLERANCE = 1e-13


def inputs(size: Size, draw: Draw) -> Arguments:
    layouts = size["layouts"]
    layout = layouts[(draw.rank + draw.index) % len(layouts)]
    H = [size.get("scale", 1.0) * _normal(draw, n, 1) for n in layout]
    weights = [_normal(draw, n, 1) for n in layout]
    P = [_covariance(_normal(draw, n, size.get("columns", n)), scaled="columns" not in size) for n in layout]
    error = 3 * _normal(draw)
    error = error + torch.where(error < 0, -0.5, 0.5).double()
    kalman_lambda = 0.9 + 0.02 * (draw.index % 4)
    arguments = (H, error, weights, P, kalman_lambda)
    return arguments if draw.index % 2 == 0 else (*arguments, 0.9487)


def oracle(inputs_of_all_ranks: list[Arguments], world_size: int) -> list[tuple[Any, ...]]:
    A = 1 / _denominator(inputs_of_all_ranks)
    return _answers(inputs_of_all_ranks, [A] * world_size, [A] * world_size)


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # P is needed before the sum over all ranks and after it, by symmetry one half each time; P' is written in full. The
    # new weights of all ranks travel, with a scalar each. K takes 2 operations an element of P, P' takes 3.
    layout = max(size["layouts"], key=lambda sizes: sum(n * n for n in sizes))
    num_squares, num_weights = sum(n * n for n in layout), sum(layout)
    return Cost(
        link_bytes=8 * (world_size - 1) * (num_weights + 1),
        hbm_bytes=8 * (2 * num_squares + (2 + world_size) * num_weights),
        flops=5 * num_squares,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[Arguments]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    ranks = range(world_size)
    kalman_lambda = inputs_of_all_ranks[0][4]
    num_blocks = sum(len(H) for H, *_ in inputs_of_all_ranks)
    denominator = _denominator(inputs_of_all_ranks)

    def with_denominators(others: list[Any]) -> list[Any]:
        inverse = [1 / one for one in others]
        return _answers(inputs_of_all_ranks, inverse, inverse)

    yield "lambda left out", with_denominators([denominator - num_blocks * kalman_lambda] * world_size)
    yield "lambda once", with_denominators([denominator - (num_blocks - 1) * kalman_lambda] * world_size)
    yield (
        "lambda once for each rank",
        with_denominators([denominator - (num_blocks - world_size) * kalman_lambda] * world_size),
    )
    right = [1 / denominator] * world_size
    yield "P not updated", _answers(inputs_of_all_ranks, right, [0 * denominator] * world_size)
    yield "weights not updated", _answers(inputs_of_all_ranks, [0 * denominator] * world_size, right)
    yield "outer product added", _answers(inputs_of_all_ranks, right, [-one for one in right])
    undivided = [[_double(leaf.value * kalman_lambda) for leaf in P_new] for _, P_new, _ in expected]
    yield "P' not divided by lambda", [(w, p, n) for (w, _, n), p in zip(expected, undivided, strict=True)]
    single = [[_double(leaf.value.float().double()) for leaf in P_new] for _, P_new, _ in expected]
    yield "P' in float32", [(w, p, n) for (w, _, n), p in zip(expected, single, strict=True)]
    yield "lambda not moved on", [(w, p, _double(torch.full_like(n.value, kalman_lambda))) for w, p, n in expected]
    if num_blocks > world_size:
        backwards = [_reversed_blocks(expected[0][0], inputs_of_all_ranks)] * world_size
        yield "blocks of a rank backwards", [(w, p, n) for w, (_, p, n) in zip(backwards, expected, strict=True)]
    if world_size == 1:
        return
    yield "denominator of the own blocks", with_denominators([_denominator([one]) for one in inputs_of_all_ranks])
    mean = [denominator / world_size] * world_size
    yield "mean of the denominators", with_denominators(mean)
    first = [(H, inputs_of_all_ranks[0][1], *rest) for H, _, *rest in inputs_of_all_ranks]
    yield "rank 0's error for all", _answers(first, right, right)
    own_first = [_answers(inputs_of_all_ranks[r:] + inputs_of_all_ranks[:r], right, right)[0] for r in ranks]
    yield "own blocks first", own_first
    own_sizes = [_split_like(expected[0][0], one[0], world_size) for one in inputs_of_all_ranks]
    yield "own sizes for all ranks", [(w, p, n) for w, (_, p, n) in zip(own_sizes, expected, strict=True)]


def _normal(draw: Draw, *shape: int) -> torch.Tensor:
    """N(0, 1) with all digits of float64, so that an argument read in float32 shows."""
    return draw.normal(*shape).double() + 2.0**-25 * draw.normal(*shape).double()


def _covariance(G: torch.Tensor, *, scaled: bool) -> torch.Tensor:
    product = G @ G.mT
    if scaled:
        product /= G.shape[0]
    # Library products are not symmetric to the last bit.
    product = (product + product.mT) / 2
    product.diagonal().add_(0.3)
    return product


def _denominator(inputs_of_all_ranks: list[Arguments]) -> torch.Tensor:
    terms = [
        torch.einsum("i,ij,j->", h.flatten(), p, h.flatten()) + kalman_lambda
        for H, _, _, P, kalman_lambda, *_ in inputs_of_all_ranks
        for h, p in zip(H, P, strict=True)
    ]
    return torch.stack(terms).sum()


def _answers(
    inputs_of_all_ranks: list[Arguments], of_weights: list[torch.Tensor], of_P: list[torch.Tensor]
) -> list[tuple[Any, ...]]:
    """What ranks return that use the given factors A for weights and for P."""
    weights_all, answers = [], []
    for (H, error, weights, P, kalman_lambda, *rest), A in zip(inputs_of_all_ranks, of_weights, strict=True):
        for h, w, p in zip(H, weights, P, strict=True):
            new = w + A * error * torch.einsum("ij,jk->ik", p, h)
            weights_all.append(Expected(new, torch.float64, _check(new, new - w)))
        nue = rest[0] if rest else NUE
        lambda_next = torch.tensor(1 - nue * (1 - kalman_lambda), dtype=torch.float64, device=error.device)
        answers.append(Expected(lambda_next, torch.float64))
    return [
        (weights_all, [_new_P(h, p, A, one[4]) for h, p in zip(one[0], one[3], strict=True)], lambda_next)
        for one, A, lambda_next in zip(inputs_of_all_ranks, of_P, answers, strict=True)
    ]


def _new_P(h: torch.Tensor, p: torch.Tensor, A: torch.Tensor, kalman_lambda: float) -> Expected:
    K = torch.einsum("ij,jk->ik", p, h)
    new = torch.einsum("ik,jk->ij", K, K).mul_(-A).add_(p).div_(kalman_lambda)
    # || A K K^T || is A ||K||^2: the step in P' lambda - P.
    return Expected(new, torch.float64, _check(new, A * K.square().sum() / kalman_lambda))


def _check(new: torch.Tensor, step: torch.Tensor) -> Check:
    """At most 1e-9 of the norm and 1e-6 of the step's norm."""
    tolerance = max(SMALLEST_TOLERANCE, min(1e-9, 1e-6 * float(step.norm() / new.norm())))
    return relative(bf16=tolerance, fp32=tolerance)


def _double(value: torch.Tensor) -> Expected:
    return Expected(value, torch.float64)


def _reversed_blocks(weights_all: list[Any], inputs_of_all_ranks: list[Arguments]) -> list[Any]:
    found, first = [], 0
    for H, *_ in inputs_of_all_ranks:
        found += weights_all[first : first + len(H)][::-1]
        first += len(H)
    return found


def _split_like(weights_all: list[Expected], own: Weights, world_size: int) -> list[Expected]:
    flat = torch.cat([leaf.value for leaf in weights_all])
    return [_double(part) for part in torch.split(flat, [len(h) for h in own] * world_size)]
