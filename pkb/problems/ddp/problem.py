"""Judge's side of ddp.

The baseline runs Adam on the flat copies, not tensor by tensor: four times fewer kernels for the same numbers.
lr, betas and eps change with the draw, so that no solution can have them built in; in every third draw eps is of the
size of a gradient. The others keep the 1e-8 of the catalogue.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import Expected, relative, step
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size
from pkb.problems._training import (
    Adam,
    State,
    adam_settings,
    all_reduce_passes,
    cut,
    draw_batch,
    draw_moments,
    draw_parameters,
    flat,
    gradient_size,
    gradients_wrongly,
    mean_gradient,
    step_cost,
)

# `rows`, `rows_of_all` and `ragged` say how many rows a rank has.
PROBLEM = Problem(
    number=40,
    group="optimizer",
    parallelism="dp",
    origin="PyTorch DistributedDataParallel",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"d_in": 7, "hidden": 23, "d_out": 5, "rows": 9, "ragged": True, "lr": 0.06},
        "tiny_wide": {"d_in": 13, "hidden": 9, "d_out": 17, "rows": 11, "ragged": True, "lr": 0.06},
        "base": {"d_in": 256, "hidden": 512, "d_out": 256, "rows_of_all": 1024, "lr": 0.01},
        "large": {"d_in": 8192, "hidden": 16384, "d_out": 8192, "rows": 4096, "lr": 0.01},
    },
    check=relative(bf16=3e-2, fp32=2e-3),
    agree=True,
)

NUM_BATCH_ARGUMENTS, NUM_TENSORS = 2, 4
"""X and y; W1, b1, W2 and b2."""


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    parameters = draw_parameters(size, draw)
    scale = gradient_size(size, draw)
    moments, squares = zip(*(draw_moments(draw, parameter.shape, scale) for parameter in parameters), strict=True)
    adam = adam_settings(draw, size["lr"], (0.9, 0.97), large_eps=scale)
    settings = (adam.lr, adam.beta1, adam.beta2, adam.eps, adam.step)
    return (*draw_batch(size, draw, target_scale=3.0), *parameters, *moments, *squares, *settings)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[tuple[Any, ...]]:
    root = inputs_of_all_ranks[0]
    gradient = mean_gradient([one[:2] for one in inputs_of_all_ranks], _tensors(root, 0))
    new = _adam(root).update(_state(root), gradient)
    parameters = zip(_cut(new[0], root), _tensors(root, 0), strict=True)
    expected = [
        *(Expected(p, check=step(old, bf16=3e-2, fp32=2e-3)) for p, old in parameters),
        *(part for moment in new[1:] for part in _cut(moment, root)),
    ]
    return [tuple(expected)] * world_size


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Three kinds of state leave rank 0 once, by multicast, and the gradient is all-reduced. In memory all three are
    # read and written, the parameters are read for each pass and the gradient is written and read.
    link = 3 + all_reduce_passes(world_size) if world_size > 1 else 0.0
    return step_cost(size, world_size, dtype, link=link, hbm=9)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size, root = len(expected), inputs_of_all_ranks[0]
    batches = [one[:2] for one in inputs_of_all_ranks]
    adam, state, parameters = _adam(root), _state(root), _tensors(root, 0)
    gradient = mean_gradient(batches, parameters)

    def answers(states: list[State]) -> list[Any]:
        return [tuple(part for vector in one for part in _cut(vector, root)) for one in states]

    for name, wrong in adam.update_wrongly(state, gradient):
        yield name, answers([wrong] * world_size)
    right = adam.update(state, gradient)
    yield "old moments returned", answers([(right[0], state[1], state[2])] * world_size)
    yield "loss halved", answers([adam.update(state, gradient / 2)] * world_size)
    yield "loss summed over outputs", answers([adam.update(state, gradient * root[1].shape[1])] * world_size)
    if world_size == 1:
        return
    for name, wrong_gradients in gradients_wrongly(batches, parameters):
        yield name, answers([adam.update(state, one) for one in wrong_gradients])
    own = [_state(one) for one in inputs_of_all_ranks]
    moments = [adam.update((state[0], m, v), gradient) for _, m, v in own]
    yield "own moments", answers(moments)
    yield "own first moment", answers([adam.update((state[0], m, state[2]), gradient) for _, m, _ in own])
    yield "own second moment", answers([adam.update((state[0], state[1], v), gradient) for _, _, v in own])
    yield "own parameters updated", answers([adam.update((p, state[1], state[2]), gradient) for p, _, _ in own])
    at_own = [mean_gradient(batches, _tensors(one, 0)) for one in inputs_of_all_ranks]
    yield "gradient at the own parameters", answers([adam.update(state, one) for one in at_own])


def _adam(arguments: tuple[Any, ...]) -> Adam:
    return Adam(*arguments[-5:])


def _tensors(arguments: tuple[Any, ...], kind: int) -> tuple[torch.Tensor, ...]:
    """The four parameters (kind 0), first moments (1) or second moments (2)."""
    first = NUM_BATCH_ARGUMENTS + kind * NUM_TENSORS
    return arguments[first : first + NUM_TENSORS]


def _state(arguments: tuple[Any, ...]) -> State:
    p, m, v = (flat(_tensors(arguments, kind)) for kind in range(3))
    return p, m, v


def _cut(vector: torch.Tensor, arguments: tuple[Any, ...]) -> list[torch.Tensor]:
    return cut(vector, [tensor.shape for tensor in _tensors(arguments, 0)])
