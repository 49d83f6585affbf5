"""Judge's side of fused_adam_grad_unshard_allgather.

lr, betas and eps change with the draw: with the 1e-8 of the catalogue alone nobody could see where eps stands, so in
every third draw it is about half of a typical root. The baseline fuses multiplications with additions where PyTorch
has an operation for it, which rounds less often than ten kernels would.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import Expected, Region, relative, step
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes
from pkb.problems._training import Adam, State, adam_settings

# A shard has `length` + `more` * draw elements.
PROBLEM = Problem(
    number=43,
    group="optimizer",
    parallelism="fsdp",
    origin="Megatron-LM distributed optimizer / ZeRO: step, then parameter all-gather",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"length": 131, "more": 2},
        "tiny_even": {"length": 50, "more": 4},
        "base": {"length": 4096, "more": 0},
        "large": {"length": 2**25, "more": 0},
    },
    check=relative(bf16=2e-2, fp32=1e-4),
    agree=True,
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    length = size["length"] + size["more"] * draw.index
    grad, master, exp_avg = (draw.normal(length, scale=scale) for scale in (0.02, 0.05, 0.01))
    exp_avg_sq = draw.uniform(0.1, 1.1, length).mul_(4e-4).to(draw.dtype)
    for tensor in (grad, exp_avg, exp_avg_sq):
        # Nothing over nothing: only eps keeps these from becoming NaN.
        tensor[draw.rank % 17 :: 17] = 0.0
    adam = adam_settings(draw, 0.05, (0.9, 0.98), large_eps=0.05)
    return grad, master, exp_avg, exp_avg_sq, adam.lr, adam.beta1, adam.beta2, adam.eps, adam.step


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Expected]:
    adam, state, gradient = _joined(inputs_of_all_ranks)
    length = len(gradient) // world_size
    places = [slice(rank * length, (rank + 1) * length) for rank in range(world_size)]
    regions = tuple(Region(f"segment of rank {rank}", place) for rank, place in enumerate(places))
    check = step(state[0], bf16=2e-2, fp32=1e-4)
    return [Expected(adam.update(state, gradient)[0], check=check, regions=regions)] * world_size


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Every peer's new shard arrives; four vectors are read and the joined one is written. Adam takes 15 operations.
    num_elems, num_bytes = size["length"], dtype_bytes(dtype)
    return Cost(
        link_bytes=(world_size - 1) * num_elems * num_bytes,
        hbm_bytes=(4 + world_size) * num_elems * num_bytes,
        flops=15 * num_elems,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    adam, state, gradient = _joined(inputs_of_all_ranks)
    right, length = expected[0].value, len(gradient) // world_size
    for name, (wrong, _, _) in adam.update_wrongly(state, gradient):
        yield name, [wrong] * world_size
    zeros = torch.zeros_like(gradient)
    yield "zero moments", [adam.update((state[0], zeros, zeros), gradient)[0]] * world_size
    yield "old moments in the update", [adam.update(state, zeros)[0]] * world_size
    not_a_number = torch.where((gradient == 0) & (state[1] == 0) & (state[2] == 0), float("nan"), right)
    yield "NaN where all is zero", [not_a_number] * world_size
    if length % 16:
        yield "rest of each shard behind whole vectors not updated", [_tail_kept(right, state[0], length)] * world_size
    if world_size == 1:
        return
    yield "shards in another order", [right.roll(length)] * world_size
    yield "own shard first", [right.roll(-rank * length) for rank in range(world_size)]
    yield "own shard alone updated", [_own_updated(right, state[0], rank, length) for rank in range(world_size)]
    # Rows of 16 bytes: a segment that begins in their middle is put at the beginning of one.
    aligned = [rank * length - rank * length % 8 for rank in range(world_size)]
    if any(rank * length != begin for rank, begin in enumerate(aligned)):
        moved = right.clone()
        for rank, begin in enumerate(aligned):
            moved[begin : begin + length] = right[rank * length : (rank + 1) * length]
        yield "segments begun at aligned addresses", [moved] * world_size


def _joined(inputs_of_all_ranks: list[tuple[Any, ...]]) -> tuple[Adam, State, torch.Tensor]:
    """Settings, state and gradient of all shards."""
    g, p, m, v = (torch.cat([one[i].double() for one in inputs_of_all_ranks]) for i in range(4))
    return Adam(*inputs_of_all_ranks[0][4:]), (p, m, v), g


def _tail_kept(new: torch.Tensor, old: torch.Tensor, length: int) -> torch.Tensor:
    """The new weights, and the old ones behind the last whole 16 of each shard."""
    wrong, whole = new.clone().view(-1, length), length - length % 16
    wrong[:, whole:] = old.view(-1, length)[:, whole:]
    return wrong.flatten()


def _own_updated(new: torch.Tensor, old: torch.Tensor, rank: int, length: int) -> torch.Tensor:
    wrong = old.clone()
    wrong[rank * length : (rank + 1) * length] = new[rank * length : (rank + 1) * length]
    return wrong
