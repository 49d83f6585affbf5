"""Training in float64, for the oracles of problems that train: gradients written out, Adam by its formula.

It knows neither autograd nor torch.distributed, which the baselines use. A flat vector holds the tensors of a model
one behind the other, each row-major.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from pkb.problems._check import Expected, step
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Size, dtype_bytes

Batch = tuple[torch.Tensor, torch.Tensor]
"""X and y of one rank."""

State = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Flat parameters, exp_avg and exp_avg_sq, of one length."""

NEVER = 10**9
"""A step so late that Adam corrects no bias any more."""


@dataclass(frozen=True)
class Adam:
    """Settings of one step; `weight_decay` acts on the old parameters, apart from the gradient."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    step: int
    weight_decay: float = 0.0

    @property
    def corrections(self) -> tuple[float, float]:
        """What the two moments are divided by."""
        return 1.0 - self.beta1**self.step, 1.0 - self.beta2**self.step

    def moments(self, state: State, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The two new moments."""
        _, m, v = state
        return self.beta1 * m + (1 - self.beta1) * gradient, self.beta2 * v + (1 - self.beta2) * gradient**2

    def update(self, state: State, gradient: torch.Tensor) -> State:
        """The new state, elements in any shape."""
        m, v = self.moments(state, gradient)
        first, second = self.corrections
        return self._moved(state[0], (m / first) / ((v / second).sqrt() + self.eps)), m, v

    def update_wrongly(self, state: State, gradient: torch.Tensor) -> Iterator[tuple[str, State]]:
        """New states of which only the parameters are wrong, by frequent mistakes."""
        p = state[0]
        right, m, v = self.update(state, gradient)
        first, second = self.corrections
        yield "old parameters", (p, m, v)
        if abs(second**0.5 / first - 1) > 0.1:
            yield "bias corrections left out", (replace(self, step=NEVER).update(state, gradient)[0], m, v)
        if max(first, second) > 1.25 * min(first, second):
            yield "bias corrections swapped", (self._moved(p, (m / second) / ((v / first).sqrt() + self.eps)), m, v)
        yield "ascent in place of descent", (2 * p - right, m, v)
        if self.eps > 1e-6:
            yield "eps inside the root", (self._moved(p, (m / first) / (v / second + self.eps).sqrt()), m, v)
            yield "eps left out", (replace(self, eps=0.0).update(state, gradient)[0], m, v)

    def _moved(self, p: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
        return p - self.lr * direction - self.lr * self.weight_decay * p


def adam_settings(draw: Draw, lr: float, betas: tuple[float, float], large_eps: float) -> Adam:
    """Settings that change with the draw; in every third one eps is so large that its place in the formula shows."""
    index = draw.index
    return Adam(
        lr=lr * (1 + index % 2 / 4),
        beta1=betas[0] - 0.05 * (index % 2),
        beta2=betas[1] - 0.02 * (index % 3 == 1),
        eps=large_eps if index % 3 == 2 else 1e-8,
        step=1 + index % 7,
    )


def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """All tensors in one float64 vector."""
    return torch.cat([tensor.double().flatten() for tensor in tensors])


def cut(vector: torch.Tensor, shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """The tensors that a flat vector holds."""
    parts = torch.split(vector, [prod(shape) for shape in shapes])
    return [part.view(tuple(shape)) for part, shape in zip(parts, shapes, strict=True)]


def mlp_shapes(d_in: int, hidden: int, d_out: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of W1, b1, W2 and b2."""
    return (hidden, d_in), (hidden,), (d_out, hidden), (d_out,)


def num_parameters(size: Size) -> int:
    """Elements of the four tensors at a size with `d_in`, `hidden` and `d_out`."""
    return sum(prod(shape) for shape in mlp_shapes(size["d_in"], size["hidden"], size["d_out"]))


def mlp_gradient(batch: Batch, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Flat gradient of the mean squared error of relu(X W1^T + b1) W2^T + b2 on one rank's rows."""
    X, y = (tensor.double() for tensor in batch)
    W1, b1, W2, b2 = (tensor.double() for tensor in parameters)
    a = X @ W1.T + b1
    z = torch.where(a > 0, a, 0.0)
    D = (z @ W2.T + b2 - y) * (2.0 / y.numel())
    dA = torch.where(a > 0, D @ W2, 0.0)
    return flat([dA.T @ X, dA.sum(dim=0), D.T @ z, D.sum(dim=0)])


def mean_gradient(
    batches: Sequence[Batch], parameters: Sequence[torch.Tensor], weights: Sequence[float] | None = None
) -> torch.Tensor:
    """Mean of the ranks' gradients, or their sum with the given weights."""
    weights = [1.0 / len(batches)] * len(batches) if weights is None else weights
    total = weights[0] * mlp_gradient(batches[0], parameters)
    for weight, batch in zip(weights[1:], batches[1:], strict=True):
        total += weight * mlp_gradient(batch, parameters)
    return total


def gradients_wrongly(
    batches: Sequence[Batch], parameters: Sequence[torch.Tensor]
) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """(mistake, the averaged gradient that each rank has by it); there are several ranks."""
    world_size = len(batches)
    own = [mlp_gradient(batch, parameters) for batch in batches]
    total = torch.stack(own).sum(dim=0)
    yield "gradients summed over ranks", [total] * world_size
    yield "own gradient", own
    yield "own gradient divided by the world size", [one / world_size for one in own]
    rows = [len(X) for X, _ in batches]
    if min(rows) < max(rows):
        shares = [n / sum(rows) for n in rows]
        yield "gradients weighted by rows", [mean_gradient(batches, parameters, shares)] * world_size


def num_rows(size: Size, rank: int, world_size: int, index: int) -> int:
    """Rows of a rank: `rows`, its share of `rows_of_all`, or with `ragged` 6 + 3 (rank mod 3) in odd draws."""
    if "rows_of_all" in size:
        return int(size["rows_of_all"] // world_size)
    return 6 + 3 * (rank % 3) if size.get("ragged", False) and index % 2 == 1 else int(size["rows"])


def gradient_size(size: Size, draw: Draw) -> float:
    """About what an element of the averaged gradient is, for moments of that size."""
    rows_of_all = sum(num_rows(size, rank, draw.world_size, draw.index) for rank in range(draw.world_size))
    return float(6.0 / (size["d_out"] * rows_of_all**0.5))


def draw_batch(size: Size, draw: Draw, target_scale: float) -> Batch:
    """X ~ N(0, 1) and targets that are the larger the higher the rank, so that no two ranks' gradients are alike."""
    rows = num_rows(size, draw.rank, draw.world_size, draw.index)
    X = draw.normal(rows, size["d_in"])
    y = draw.normal(rows, size["d_out"]).float() * target_scale + draw.rank
    return X, y.to(draw.dtype)


def draw_parameters(size: Size, draw: Draw) -> list[torch.Tensor]:
    """W1, b1, W2 and b2 on rank 0; garbage of a plausible size, never zeros, on the others."""
    parameters = []
    for shape in mlp_shapes(size["d_in"], size["hidden"], size["d_out"]):
        scale = shape[1] ** -0.5 if len(shape) == 2 else 0.3
        parameters.append(draw.normal(*shape, scale=scale if draw.rank == 0 else 3.0))
    return parameters


def draw_moments(draw: Draw, shape: Sequence[int], gradient: float) -> tuple[torch.Tensor, torch.Tensor]:
    """exp_avg and exp_avg_sq, large enough that a constant factor of the gradient shows."""
    squares = draw.uniform(0.05, 0.25, *shape).mul_(gradient**2)
    return draw.normal(*shape, scale=0.4 * gradient), squares.to(draw.dtype)


def step_cost(size: Size, world_size: int, dtype: Dtype, *, link: float, hbm: float) -> Cost:
    """Cost of a training step that moves and touches so many times the parameters.

    Rows are read and the hidden layer is written once and read once; the gradient of X is computed by nobody.
    """
    d_in, hidden, d_out, num_bytes = size["d_in"], size["hidden"], size["d_out"], dtype_bytes(dtype)
    num_elems, rows = num_parameters(size), num_rows(size, 0, world_size, 0)
    return Cost(
        link_bytes=link * num_elems * num_bytes,
        hbm_bytes=(hbm * num_elems + rows * (d_in + 2 * hidden + d_out)) * num_bytes,
        flops=rows * hidden * (4 * d_in + 6 * d_out),
    )


def all_reduce_passes(world_size: int) -> float:
    """How often an all-reduce moves its elements: by slices, or added and copied by a switch."""
    return min(2 * (world_size - 1) / world_size, 1 + 1 / world_size)


def zero_inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    """Arguments of a ZeRO step: as for data parallelism, with the moments of the rank's slice alone."""
    parameters = draw_parameters(size, draw)
    scale = gradient_size(size, draw)
    moments = draw_moments(draw, (num_parameters(size) // draw.world_size,), scale)
    adam = adam_settings(draw, size["lr"], (0.9, 0.97), large_eps=scale)
    settings = (adam.lr, adam.beta1, adam.beta2, adam.eps, adam.step)
    return (*draw_batch(size, draw, target_scale=3.0), *parameters, *moments, *settings)


def zero_answers(inputs_of_all_ranks: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """What each rank returns from a ZeRO step: all new parameters, and the new moments of its slice."""
    root, world_size = inputs_of_all_ranks[0], len(inputs_of_all_ranks)
    gradient = mean_gradient([one[:2] for one in inputs_of_all_ranks], root[2:6])
    p, m, v = _zero_adam(root).update(_zero_state(inputs_of_all_ranks), gradient)
    parameters = [
        Expected(new, check=step(old, bf16=3e-2, fp32=2e-3), agree=True)
        for new, old in zip(cut(p, [old.shape for old in root[2:6]]), root[2:6], strict=True)
    ]
    parts = zip(m.chunk(world_size), v.chunk(world_size), strict=True)
    return [(*parameters, *moments) for moments in parts]


def zero_near_misses(inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """Wrong answers of all ranks in a ZeRO step."""
    root, world_size = inputs_of_all_ranks[0], len(inputs_of_all_ranks)
    batches, shapes = [one[:2] for one in inputs_of_all_ranks], [tensor.shape for tensor in root[2:6]]
    adam, state = _zero_adam(root), _zero_state(inputs_of_all_ranks)
    gradient = mean_gradient(batches, root[2:6])

    def answers(states: Sequence[State]) -> list[tuple[Any, ...]]:
        """Each rank returns the whole of its own state's parameters, and its slices of its moments."""
        slices = [(m.chunk(world_size)[r], v.chunk(world_size)[r]) for r, (_, m, v) in enumerate(states)]
        return [(*cut(p, shapes), *part) for (p, _, _), part in zip(states, slices, strict=True)]

    for name, wrong in adam.update_wrongly(state, gradient):
        yield name, answers([wrong] * world_size)
    p, m, v = adam.update(state, gradient)
    yield "old moments returned", answers([(p, state[1], state[2])] * world_size)
    if world_size == 1:
        return
    for name, wrong_gradients in gradients_wrongly(batches, root[2:6]):
        mixed = _slices_of_ranks(wrong_gradients)
        yield name, answers([adam.update(state, mixed)] * world_size)
    own_parameters = [flat(one[2:6]) for one in inputs_of_all_ranks]
    mixed = _slices_of_ranks(own_parameters)
    yield "own parameters updated", answers([adam.update((mixed, *state[1:]), gradient)] * world_size)
    at_own = torch.stack([mlp_gradient(one[:2], one[2:6]) for one in inputs_of_all_ranks]).mean(dim=0)
    yield "gradients at the own parameters", answers([adam.update(state, at_own)] * world_size)
    length = len(gradient) // world_size
    turned = (state[0], state[1].roll(length), state[2].roll(length))
    yield "moments of the previous rank's slice", answers([adam.update(turned, gradient)] * world_size)
    yield "gradient of another slice", answers([adam.update(state, gradient.roll(length))] * world_size)
    yield "slices gathered in another order", answers([(p.roll(length), m, v)] * world_size)
    alone = [_only_slice(p, state[0], rank, world_size) for rank in range(world_size)]
    yield "new parameters not gathered", answers([(one, m, v) for one in alone])
    # A vector load that begins at the multiple of 16 elements below the slice.
    shift = [rank * length % 16 for rank in range(world_size)]
    moved = _slices_of_ranks([gradient.roll(one) for one in shift])
    yield "slices begun at aligned addresses", answers([adam.update(state, moved)] * world_size)


def _slices_of_ranks(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Slice r of vector r, for all r."""
    return torch.cat([vector.chunk(len(vectors))[rank] for rank, vector in enumerate(vectors)])


def _only_slice(new: torch.Tensor, old: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    """The old values with slice `rank` of the new ones."""
    parts = list(old.chunk(world_size))
    parts[rank] = new.chunk(world_size)[rank]
    return torch.cat(parts)


def _zero_adam(arguments: tuple[Any, ...]) -> Adam:
    return Adam(*arguments[8:])


def _zero_state(inputs_of_all_ranks: list[tuple[Any, ...]]) -> State:
    """Parameters of rank 0 and the moments of all slices."""
    m, v = (flat([one[place] for one in inputs_of_all_ranks]) for place in (6, 7))
    return flat(inputs_of_all_ranks[0][2:6]), m, v
