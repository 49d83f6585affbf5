"""Judge's side of zero1_optimizer_shard.

lr, betas and eps change with the draw, so that no solution can have them built in; in every third draw eps is of the
size of a gradient. The others keep the 1e-8 of the catalogue.
"""

from collections.abc import Iterator
from typing import Any

from pkb.problems._check import relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size
from pkb.problems._training import all_reduce_passes, step_cost, zero_answers, zero_inputs, zero_near_misses

# `rows`, `rows_of_all` and `ragged` say how many rows a rank has.
PROBLEM = Problem(
    number=41,
    group="optimizer",
    parallelism="dp (ZeRO-1)",
    origin="ZeRO stage 1 (DeepSpeed)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"d_in": 7, "hidden": 23, "d_out": 5, "rows": 9, "ragged": True, "lr": 0.06},
        "tiny_wide": {"d_in": 13, "hidden": 9, "d_out": 17, "rows": 11, "ragged": True, "lr": 0.06},
        "base": {"d_in": 256, "hidden": 512, "d_out": 256, "rows_of_all": 1024, "lr": 0.01},
        "large": {"d_in": 8192, "hidden": 16384, "d_out": 8192, "rows": 4096, "lr": 0.01},
    },
    check=relative(bf16=3e-2, fp32=2e-3),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    return zero_inputs(size, draw)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[tuple[Any, ...]]:
    return zero_answers(inputs_of_all_ranks)


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # The parameters leave rank 0 once, by multicast; gradients are reduced to slices and new slices gathered, which is
    # an all-reduce with Adam in its middle. In memory rank 0's parameters are read or received, read for the two
    # passes and written anew (4), the gradient is written and read (2); the moments of one slice are left out.
    link = 1 + all_reduce_passes(world_size) if world_size > 1 else 0.0
    return step_cost(size, world_size, dtype, link=link, hbm=6)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    yield from zero_near_misses(inputs_of_all_ranks)
