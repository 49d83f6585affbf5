"""Judge's side of fsdp_and_tp.

The layout changes with the draw at tiny sizes. The baseline gathers into one tensor, which is W1_t and W2_t as it lies;
of W3_t it makes the one copy that a product needs.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from pkb.problems._check import relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# `rows` are of one rank, `rows_of_all` are split over the FSDP places; `vary` takes all layouts in turn.
PROBLEM = Problem(
    number=48,
    group="gemm",
    parallelism="fsdp + tp",
    origin='2-D sharded Llama feed-forward (TorchTitan / "How to scale your model" style)',
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"hidden": 24, "inner": 40, "rows": 5, "vary": True},
        "tiny_wide": {"hidden": 40, "inner": 56, "rows": 13, "vary": True},
        "base": {"hidden": 256, "inner": 1024, "rows_of_all": 2048},
        "large": {"hidden": 8192, "inner": 28672, "rows": 2048},
    },
    check=relative(bf16=2e-2, fp32=2e-3),
)

LAYOUTS = {1: ((1, 1),), 2: ((1, 2), (2, 1)), 4: ((2, 2), (4, 1), (1, 4)), 8: ((2, 4), (4, 2), (8, 1))}
"""(n_tp, n_fsdp) by world size; the first one is that of the sizes whose layout is fixed."""

Activation = Callable[[torch.Tensor], torch.Tensor]


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    n_tp, n_fsdp = _layout(size, draw.world_size, draw.index)
    f, t = divmod(draw.rank, n_tp)
    D, inner, rows = size["hidden"], size["inner"], _num_rows(size, n_fsdp)
    # Larger weights would drive silu to where it is relu.
    full = [draw.shared_normal(*shape, scale=scale * shape[0] ** -0.5) for shape, scale in _forms(D, inner)]
    shards = [_shard(weight, i, (f, t), (n_fsdp, n_tp)) for i, weight in enumerate(full)]
    xs = [draw.shared_normal(rows, D) for _ in range(n_fsdp)]
    return xs[f], *shards, n_tp, n_fsdp


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    return _answers(inputs_of_all_ranks, _whole(inputs_of_all_ranks))


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # The other FSDP places' shards arrive, and the result is all-reduced by slices, or added by a switch, in the TP
    # group. Every weight is read once, the rows are read and written; three products.
    n_tp, n_fsdp = _layout(size, world_size, 0)
    D, columns, rows = size["hidden"], size["inner"] // n_tp, _num_rows(size, n_fsdp)
    num_bytes = dtype_bytes(dtype)
    passes = min(2 * (n_tp - 1) / n_tp, 1 + 1 / n_tp)
    return Cost(
        link_bytes=(3 * D * columns * (n_fsdp - 1) / n_fsdp + rows * D * passes) * num_bytes,
        hbm_bytes=(3 * D * columns + 2 * rows * D) * num_bytes,
        flops=6 * rows * D * columns,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    W1, W2, W3 = _whole(inputs_of_all_ranks)
    n_tp, n_fsdp = inputs_of_all_ranks[0][4:]
    yield "relu for silu", _answers(inputs_of_all_ranks, (W1, W2, W3), F.relu)
    yield "gelu for silu", _answers(inputs_of_all_ranks, (W1, W2, W3), F.gelu)
    yield "sigmoid for silu", _answers(inputs_of_all_ranks, (W1, W2, W3), torch.sigmoid)
    yield "W1 and W2 exchanged", _answers(inputs_of_all_ranks, (W2, W1, W3))
    yield "gate left out", _answers(inputs_of_all_ranks, (W1, W2, W3), torch.ones_like)
    if n_fsdp > 1:
        D, inner = W1.shape
        columns = inner // n_tp
        # W3_t [F/n_tp, D] read from shards that lie one behind the other along dim 0.
        behind = W3.view(n_tp, columns, n_fsdp, D // n_fsdp).transpose(1, 2).reshape(inner, D)
        yield "W3 gathered along dim 0", _answers(inputs_of_all_ranks, (W1, W2, behind))
        turned = (W1.roll(D // n_fsdp, 0), W2.roll(D // n_fsdp, 0), W3.roll(D // n_fsdp, 1))
        yield "shards gathered in another order", _answers(inputs_of_all_ranks, turned)
        yield "x of FSDP place 0", [expected[rank % n_tp] for rank in range(len(expected))]
        alone = (_zeroed(W1, D // n_fsdp, 0), _zeroed(W2, D // n_fsdp, 0), _zeroed(W3, D // n_fsdp, 1))
        yield "shards of FSDP place 0 alone", _answers(inputs_of_all_ranks, alone)
    if n_tp > 1:
        parts = [_part(inputs_of_all_ranks, (W1, W2, W3), rank) for rank in range(len(expected))]
        yield "own part alone", parts
        yield "own part counted twice", [one + part for one, part in zip(expected, parts, strict=True)]
        yield "mean over the TP group", [one / n_tp for one in expected]
    if n_tp > 1 and n_fsdp > 1:
        yield "summed over all ranks", [sum(expected[::n_tp])] * len(expected)
        yield (
            "FSDP taken for the inner place",
            _answers(_turned(inputs_of_all_ranks), _whole(_turned(inputs_of_all_ranks))),
        )


def _layout(size: Size, world_size: int, index: int) -> tuple[int, int]:
    layouts = LAYOUTS[world_size]
    return layouts[index % len(layouts)] if size.get("vary", False) else layouts[0]


def _num_rows(size: Size, n_fsdp: int) -> int:
    return int(size["rows_of_all"] // n_fsdp if "rows_of_all" in size else size["rows"])


def _forms(D: int, inner: int) -> tuple[tuple[tuple[int, int], float], ...]:
    """Shapes of the three whole weights, and their size times the root of their first dimension."""
    return ((D, inner), 1.5), ((D, inner), 1.0), ((inner, D), 1.0)


def _shard(weight: torch.Tensor, which: int, place: tuple[int, int], layout: tuple[int, int]) -> torch.Tensor:
    """The part of weight 0, 1 or 2 at (f, t) of an (n_fsdp, n_tp) grid."""
    (f, t), (n_fsdp, n_tp) = place, layout
    if which == 2:
        return weight.chunk(n_tp, dim=0)[t].chunk(n_fsdp, dim=1)[f].clone()
    return weight.chunk(n_fsdp, dim=0)[f].chunk(n_tp, dim=1)[t].clone()


def _whole(inputs_of_all_ranks: list[tuple[Any, ...]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The three weights of all ranks, float64."""
    n_tp, n_fsdp = inputs_of_all_ranks[0][4:]
    W1, W2, W3 = (torch.stack([one[i] for one in inputs_of_all_ranks]).double() for i in (1, 2, 3))
    D, inner = n_fsdp * W1.shape[1], n_tp * W1.shape[2]
    W1, W2 = (w.view(n_fsdp, n_tp, *w.shape[1:]).transpose(1, 2).reshape(D, inner) for w in (W1, W2))
    return W1, W2, W3.view(n_fsdp, n_tp, *W3.shape[1:]).permute(1, 2, 0, 3).reshape(inner, D)


def _answers(
    inputs_of_all_ranks: list[tuple[Any, ...]], weights: Sequence[torch.Tensor], gate: Activation | None = None
) -> list[torch.Tensor]:
    """The feed-forward with whole weights for the rows of every FSDP place; silu is the gate if none is given."""
    n_tp, (W1, W2, W3) = inputs_of_all_ranks[0][4], weights
    results = []
    for x in [one[0].double() for one in inputs_of_all_ranks[::n_tp]]:
        a = x @ W1
        results += [(((a * torch.sigmoid(a)) if gate is None else gate(a)) * (x @ W2)) @ W3] * n_tp
    return results


def _part(
    inputs_of_all_ranks: list[tuple[Any, ...]], weights: tuple[torch.Tensor, torch.Tensor, torch.Tensor], rank: int
) -> torch.Tensor:
    """What a rank's own columns of W1 and W2 add to the result."""
    n_tp = inputs_of_all_ranks[0][4]
    t = rank % n_tp
    W1, W2, W3 = (w.chunk(n_tp, dim=dim)[t] for w, dim in zip(weights, (1, 1, 0), strict=True))
    x: torch.Tensor = inputs_of_all_ranks[rank][0].double()
    a = x @ W1
    part: torch.Tensor = (a * torch.sigmoid(a) * (x @ W2)) @ W3
    return part


def _zeroed(weight: torch.Tensor, length: int, dim: int) -> torch.Tensor:
    """The weight without what lies behind the first `length` places."""
    kept = torch.zeros_like(weight)
    kept.narrow(dim, 0, length).copy_(weight.narrow(dim, 0, length))
    return kept


def _turned(inputs_of_all_ranks: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Weights of the ranks as they would be if rank were t n_fsdp + f."""
    n_tp, n_fsdp = inputs_of_all_ranks[0][4:]
    order = [t * n_fsdp + f for f in range(n_fsdp) for t in range(n_tp)]
    return [
        (one[0], *inputs_of_all_ranks[other][1:4], n_tp, n_fsdp)
        for one, other in zip(inputs_of_all_ranks, order, strict=True)
    ]
