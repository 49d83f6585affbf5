"""Judge's side of fsdp_step_e2e.

Settings change with the draw, so that no solution can have them built in: in every third draw eps is of the size of a
gradient, and in every third the decay is ten times that of the catalogue; there it shows in bf16 whether the old or the
new parameters decay. The step from the old parameters is judged in fp32 too, with the tolerance of the outputs.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import torch

from pkb.problems._check import Expected, every, relative, step
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes
from pkb.problems._training import (
    Adam,
    State,
    adam_settings,
    cut,
    draw_batch,
    flat,
    gradient_size,
    gradients_wrongly,
    mean_gradient,
    mlp_shapes,
    num_parameters,
    num_rows,
)

# `rows` and `rows_of_all` say how many rows a rank has.
PROBLEM = Problem(
    number=47,
    group="optimizer",
    parallelism="fsdp",
    origin="PyTorch FSDP / ZeRO stage 3 with a flat parameter",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"d_in": 7, "hidden": 23, "d_out": 5, "rows": 9},
        "tiny_wide": {"d_in": 13, "hidden": 9, "d_out": 17, "rows": 11},
        "base": {"d_in": 256, "hidden": 512, "d_out": 256, "rows_of_all": 1024},
        "large": {"d_in": 4096, "hidden": 14336, "d_out": 4096, "rows": 2048},
    },
    check=relative(bf16=2.5e-2, fp32=2e-3),
)

DECAY, STRONG_DECAY = 0.05, 0.5
"""lr * weight_decay."""


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    shapes = mlp_shapes(size["d_in"], size["hidden"], size["d_out"])
    scales = [shape[1] ** -0.5 if len(shape) == 2 else 0.3 for shape in shapes]
    drawn = [draw.shared_normal(*shape, scale=scale).flatten() for shape, scale in zip(shapes, scales, strict=True)]
    parameters = torch.cat(drawn).chunk(draw.world_size)[draw.rank].clone()
    # 10 in place of the 6 of `gradient_size`: targets are larger than those of the other training steps.
    gradient = gradient_size(size, draw) * 10 / 6
    exp_avg = draw.normal(len(parameters), scale=0.3 * gradient)
    exp_avg_sq = draw.uniform(0.02, 0.1, len(parameters)).mul_(gradient**2).to(draw.dtype)
    adam = adam_settings(draw, 0.3 * size["d_in"] ** -0.5, (0.9, 0.95), large_eps=gradient)
    decay = (STRONG_DECAY if draw.index % 3 == 1 else DECAY) / adam.lr
    settings = (adam.lr, adam.beta1, adam.beta2, adam.eps, decay, adam.step)
    return (*draw_batch(size, draw, target_scale=5.0), parameters, shapes, exp_avg, exp_avg_sq, *settings)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[tuple[Any, ...]]:
    adam, state = _adam(inputs_of_all_ranks[0]), _state(inputs_of_all_ranks)
    new = _slices(adam.update(state, _gradient(inputs_of_all_ranks, state[0])), world_size)
    answers = []
    for (parameters, *moments), one in zip(new, inputs_of_all_ranks, strict=True):
        check = every(relative(bf16=2.5e-2, fp32=2e-3), step(one[2], bf16=5e-2, fp32=2e-3))
        answers.append((Expected(parameters, check=check), *moments))
    return answers


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Parameters are gathered and gradients reduced to slices: each moves all but the own slice. In memory parameters
    # count once, rows, hidden layer and outputs for each of three products, and of the slice three vectors are read
    # and three written. The gradient of X is computed by nobody.
    num_elems, num_bytes = num_parameters(size), dtype_bytes(dtype)
    rows = num_rows(size, 0, world_size, 0)
    d_in, hidden, d_out = size["d_in"], size["hidden"], size["d_out"]
    shard = num_elems / world_size
    return Cost(
        link_bytes=2 * (num_elems - shard) * num_bytes,
        hbm_bytes=(num_elems + 3 * rows * (d_in + hidden + d_out) + 6 * shard) * num_bytes,
        flops=rows * hidden * (4 * d_in + 6 * d_out),
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    adam, state = _adam(inputs_of_all_ranks[0]), _state(inputs_of_all_ranks)
    gradient = _gradient(inputs_of_all_ranks, state[0])
    new = adam.update(state, gradient)
    for name, wrong in adam.update_wrongly(state, gradient):
        yield name, _slices(wrong, world_size)
    yield "old moments returned", _slices((new[0], state[1], state[2]), world_size)
    yield from _wrong_decay(adam, state, gradient, world_size)
    yield "loss halved", _slices(adam.update(state, gradient / 2), world_size)
    if world_size == 1:
        return
    batches = [one[:2] for one in inputs_of_all_ranks]
    for name, gradients in gradients_wrongly(batches, cut(state[0], inputs_of_all_ranks[0][3])):
        mixed = torch.cat([one.chunk(world_size)[rank] for rank, one in enumerate(gradients)])
        yield name, _slices(adam.update(state, mixed), world_size)
    length = len(gradient) // world_size
    yield "gradient of another slice", _slices(adam.update(state, gradient.roll(length)), world_size)
    yield "slices joined in another order", _with_gradient_at(state[0].roll(length), inputs_of_all_ranks)
    # As if every rank held rows of every tensor, as per-parameter sharding does.
    yield "slices taken for parts of each tensor", _with_gradient_at(_dealt(inputs_of_all_ranks), inputs_of_all_ranks)


def _wrong_decay(
    adam: Adam, state: State, gradient: torch.Tensor, world_size: int
) -> Iterator[tuple[str, list[tuple[torch.Tensor, ...]]]]:
    decay, without = adam.lr * adam.weight_decay, replace(adam, weight_decay=0.0)
    plain = without.update(state, gradient)
    yield "no decay", _slices(plain, world_size)
    yield "decay not multiplied by lr", _slices((plain[0] - adam.weight_decay * state[0], *plain[1:]), world_size)
    if decay >= STRONG_DECAY / 2:
        yield "new parameters decay", _slices(((1 - decay) * plain[0], *plain[1:]), world_size)
        in_gradient = gradient + adam.weight_decay * state[0]
        yield "decay added to the gradient", _slices(without.update(state, in_gradient), world_size)


def _with_gradient_at(
    parameters: torch.Tensor, inputs_of_all_ranks: list[tuple[Any, ...]]
) -> list[tuple[torch.Tensor, ...]]:
    """The right update with the gradient at other parameters."""
    adam, state = _adam(inputs_of_all_ranks[0]), _state(inputs_of_all_ranks)
    gradient = _gradient(inputs_of_all_ranks, parameters)
    return _slices(adam.update(state, gradient), len(inputs_of_all_ranks))


def _dealt(inputs_of_all_ranks: list[tuple[Any, ...]]) -> torch.Tensor:
    """Parameters of which each slice is read as its parts of W1, b1, W2 and b2, one behind the other."""
    world_size = len(inputs_of_all_ranks)
    counts = [prod(shape) for shape in inputs_of_all_ranks[0][3]]
    shares = [[n * (rank + 1) // world_size - n * rank // world_size for n in counts] for rank in range(world_size)]
    parts = torch.split(_state(inputs_of_all_ranks)[0], [share for of_rank in shares for share in of_rank])
    return torch.cat([part for i in range(len(counts)) for part in parts[i :: len(counts)]])


def _gradient(inputs_of_all_ranks: list[tuple[Any, ...]], parameters: torch.Tensor) -> torch.Tensor:
    return mean_gradient([one[:2] for one in inputs_of_all_ranks], cut(parameters, inputs_of_all_ranks[0][3]))


def _adam(arguments: tuple[Any, ...]) -> Adam:
    lr, beta1, beta2, eps, weight_decay, step_index = arguments[6:]
    return Adam(lr, beta1, beta2, eps, step_index, weight_decay)


def _state(inputs_of_all_ranks: list[tuple[Any, ...]]) -> State:
    """Parameters and moments of all slices."""
    p, m, v = (flat([one[place] for one in inputs_of_all_ranks]) for place in (2, 4, 5))
    return p, m, v


def _slices(state: State, world_size: int) -> list[tuple[torch.Tensor, ...]]:
    return list(zip(*(vector.chunk(world_size) for vector in state), strict=True))
