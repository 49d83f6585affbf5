"""Judge's side of layernorm_backward.

The baseline sends both rows of sums in one all-reduce: a second one would be overhead that nobody has to pay.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# Rank r has `rows` + r `more_rows` rows.
PROBLEM = Problem(
    number=9,
    group="norm",
    parallelism="dp",
    origin="LayerNorm backward (parameter gradients, as in Apex / PyTorch) with the data-parallel gradient sum",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"rows": 211, "more_rows": 16, "hidden": 53},
        "base": {"rows": 1024, "hidden": 1024},
        "large": {"rows": 32768, "hidden": 8192},
    },
    check=relative(bf16=1e-2, fp32=1e-5),
    exact_trial=True,
)


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    rows, hidden = _num_rows(size, draw.rank), size["hidden"]
    if draw.exact:
        # Entries are non-zero with probability 1024 / rows of all ranks: d_beta sums one factor, not a product of two.
        total = sum(_num_rows(size, rank) for rank in range(draw.world_size))
        return _exact_terms(draw, rows, hidden, total), _exact_terms(draw, rows, hidden, total)
    X = draw.normal(rows, hidden).float()
    X_hat = (X - X.mean(dim=-1, keepdim=True)) / X.std(dim=-1, keepdim=True, correction=0)
    # Sums grow like the number of rows, so that an accumulator in bf16 fails.
    mean, slope = draw.shared_normal(hidden).float(), draw.shared_normal(hidden).float()
    dY = (1 + draw.rank / 2) * (draw.normal(rows, hidden).float() + mean + slope * X_hat)
    return X_hat.to(draw.dtype), dY.to(draw.dtype)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    X_hat = torch.cat([X.double() for X, _ in inputs_of_all_ranks])
    dY = torch.cat([d.double() for _, d in inputs_of_all_ranks])
    d_gamma = torch.einsum("bh,bh->h", X_hat, dY)
    d_beta = torch.einsum("bh->h", dY)
    return [(d_gamma, d_beta)] * world_size


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Both rows of sums are all-reduced by slices, or added by a switch; the two tensors are read once.
    rows, hidden, num_bytes = _num_rows(size, world_size - 1), size["hidden"], dtype_bytes(dtype)
    passes = min(2 * (world_size - 1) / world_size, 1 + 1 / world_size)
    return Cost(
        link_bytes=2 * hidden * num_bytes * passes,
        hbm_bytes=(2 * rows + 2) * hidden * num_bytes,
        flops=3 * rows * hidden,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    gamma, beta = expected[0]
    num_rows = [X.shape[0] for X, _ in inputs_of_all_ranks]
    yield "outputs exchanged", [(beta, gamma)] * world_size
    yield "mean over all rows", [(gamma / sum(num_rows), beta / sum(num_rows))] * world_size
    yield "every sum counted twice", [(2 * gamma, 2 * beta)] * world_size
    yield "X_hat left out of d_gamma", [(beta, beta)] * world_size
    without_last = [(X[:-8], dY[:-8]) for X, dY in inputs_of_all_ranks]
    yield "last 8 rows of every rank left out", [_sums(without_last)] * world_size
    # Sums in an exact trial are small enough for bf16 too.
    yield "accumulated in bf16", [_sums_in_bf16(inputs_of_all_ranks)] * world_size
    if world_size == 1:
        return
    yield "own rows alone", [_sums([one]) for one in inputs_of_all_ranks]
    yield "mean over ranks", [(gamma / world_size, beta / world_size)] * world_size
    yield "d_beta of the own rows", [(gamma, _sums([one])[1]) for one in inputs_of_all_ranks]
    cut = [(X[: num_rows[0]], dY[: num_rows[0]]) for X, dY in inputs_of_all_ranks]
    yield "as many rows of each rank as rank 0 has", [_sums(cut)] * world_size


def _sums(parts: list[tuple[Any, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums over the rows of the given ranks."""
    X_hat = torch.cat([X.double() for X, _ in parts])
    dY = torch.cat([d.double() for _, d in parts])
    return (X_hat * dY).sum(dim=0), dY.sum(dim=0)


def _sums_in_bf16(parts: list[tuple[Any, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums over all rows, one after the other, rounded to bf16 after each addition."""
    X_hat = torch.cat([X.float() for X, _ in parts])
    dY = torch.cat([d.float() for _, d in parts])
    terms = torch.cat((X_hat * dY, dY), dim=1).bfloat16()
    total = torch.zeros_like(terms[0])
    for row in terms:
        total += row
    d_gamma, d_beta = total.double().chunk(2)
    return d_gamma, d_beta


def _exact_terms(draw: Draw, rows: int, hidden: int, num_rows_of_all: int) -> torch.Tensor:
    """Entries in {-1, 0, 1}, non-zero with probability min(1, 1024 / num_rows_of_all)."""
    return draw.exact_factors(rows, hidden, num_terms=num_rows_of_all**2 // 1024 + 1)


def _num_rows(size: Size, rank: int) -> int:
    return int(size["rows"] + rank * size.get("more_rows", 0))
