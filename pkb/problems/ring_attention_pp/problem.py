"""Judge's side of ring_attention_pp.

Tiny sizes vary mask and scale; `tiny_deep` has middle stages and `tiny_single` no pipeline (pp_group None): the
catalogue fixes pp = min(2, W) and names no scale. cp_group None stands for the default group. Costs are those of one
stage, which waits for the one before: the critical path is as many times longer as there are stages.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._attention import (
    attend,
    attend_in_order,
    attention_flops,
    draw_w_qkv,
    project_qkv,
    read_head_by_head,
)
from pkb.problems._check import Bound, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# `pp` is an upper bound, since no group exceeds W; `block` is S, `total` cp S; `hidden` is Hd. Scores of four stages
# are less sharp: each stage would else magnify the rounding errors of those before it.
PROBLEM = Problem(
    number=56,
    group="attention",
    parallelism="pp + cp",
    origin="Megatron-LM pipeline and context parallelism over ring attention",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"batch": 2, "block": 5, "heads": 3, "d": 8, "hidden": 28, "pp": 2},
        "tiny_deep": {"batch": 1, "block": 6, "heads": 2, "d": 8, "hidden": 20, "pp": 4, "sharpness": 1.2},
        "tiny_single": {"batch": 1, "block": 4, "heads": 3, "d": 8, "hidden": 28, "pp": 1},
        "base": {"batch": 16, "total": 16, "heads": 8, "d": 64, "hidden": 512, "pp": 2, "causal": True},
        "large": {"batch": 1, "block": 4096, "heads": 32, "d": 128, "hidden": 4096, "pp": 2, "causal": True},
    },
    # Rounding of sharp scores moves single elements by more than the usual bound allows.
    check=relative(bf16=2e-2, fp32=2e-3, elements=Bound(rms=0.25, rel=0.05)),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    pp, cp = _grid(size, draw.world_size)
    stage = draw.rank // cp
    hidden, width = size["hidden"], size["heads"] * size["d"]
    # Those of later stages are decoys.
    x = draw.normal(size["batch"], _block(size, cp), hidden)
    w_qkv = draw_w_qkv(draw.shared_normal, pp, 3 * width, hidden, sharpness=size.get("sharpness", 1.6))[stage].clone()
    w_o = draw.shared_normal(pp, hidden, width, scale=width**-0.5)[stage].clone()
    causal = size.get("causal", draw.index % 3 != 0)
    scale = 0.25 if "causal" not in size and draw.index % 2 == 1 else None
    may_be_none = draw.index % 4 > 1
    cp_group = None if pp == 1 and may_be_none else Group.inner(draw.world_size, cp)
    pp_group = None if pp == 1 and draw.index % 2 == 0 else Group.outer(draw.world_size, cp)
    return x, w_qkv, w_o, size["heads"], scale, causal, cp_group, pp_group


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    return _run(inputs_of_all_ranks)


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # A stage's input arrives or its output leaves, and keys and values of the CP peers arrive, or half of them under
    # the mask. Memory passes: input, weights and output once, keys and values of peers.
    pp, cp = _grid(size, world_size)
    block, num_bytes, hidden = _block(size, cp), dtype_bytes(dtype), size["hidden"]
    rows, width, causal = size["batch"] * block, size["heads"] * size["d"], size.get("causal", False)
    num_blocks = (cp - 1) / (2 if causal else 1)
    peers = 2 * num_blocks * rows * width * num_bytes
    return Cost(
        link_bytes=peers + (rows * hidden * num_bytes if pp > 1 else 0),
        hbm_bytes=peers + (2 * rows * hidden + 4 * hidden * width) * num_bytes,
        flops=8 * rows * hidden * width + attention_flops(size["batch"], block, block * cp, width, causal),
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    x, _, _, num_heads, scale, causal, *_ = inputs_of_all_ranks[0]
    yield "scaled by the width of the model", _run(_with_options(inputs_of_all_ranks, x.shape[2] ** -0.5, causal))
    if scale is not None:
        yield "scale not used", _run(_with_options(inputs_of_all_ranks, None, causal))
    if causal:
        yield "mask left out", _run(_with_options(inputs_of_all_ranks, scale, False))
    by_head = [(one[0], read_head_by_head(one[1], num_heads), *one[2:]) for one in inputs_of_all_ranks]
    yield "rows of w_qkv taken head by head", _run(by_head)
    yield "mean of the values", _run(_with_options(inputs_of_all_ranks, 0.0, causal))
    with_residual = [want + one[0].double() for want, one in zip(expected, inputs_of_all_ranks, strict=True)]
    yield "hidden_states added", with_residual
    if world_size == 1:
        return
    cp = _num_in_stage(inputs_of_all_ranks)
    if cp < world_size:
        alone = [_run(inputs_of_all_ranks[first : first + cp]) for first in range(0, world_size, cp)]
        yield "later stages use their own hidden_states", [one for stage in alone for one in stage]
        yield "last stage's output everywhere", expected[-cp:] * (world_size // cp)
        yield "a stage's output one stage late", expected[:cp] + expected[:-cp]
        again = [(*one[:1], *inputs_of_all_ranks[rank % cp][1:]) for rank, one in enumerate(inputs_of_all_ranks)]
        yield "stage 0's weights in every stage", _run(again)
    if cp > 1:
        lone = [_run([(*one[:6], None, one[7]) for one in inputs_of_all_ranks[c::cp]], cp=1) for c in range(cp)]
        yield "own block of the sequence alone", [lone[rank % cp][rank // cp] for rank in range(world_size)]
        yield "another block's queries", [expected[rank // cp * cp + (rank + 1) % cp] for rank in range(world_size)]
        if causal:
            yield "mask in local positions", _run(inputs_of_all_ranks, local_mask=True)


def _run(
    inputs_of_all_ranks: list[tuple[Any, ...]], cp: int | None = None, local_mask: bool = False
) -> list[torch.Tensor]:
    """Outputs of all stages one after the other, each for the whole sequence at once."""
    cp = cp or _num_in_stage(inputs_of_all_ranks)
    blocks = [x.double() for x, *_ in inputs_of_all_ranks[:cp]]
    answers = []
    for first in range(0, len(inputs_of_all_ranks), cp):
        ranks = inputs_of_all_ranks[first : first + cp]
        blocks = _stage(blocks, ranks, local_mask)
        answers += blocks
    return answers


def _stage(blocks: list[torch.Tensor], ranks: list[tuple[Any, ...]], local_mask: bool) -> list[torch.Tensor]:
    """One attention layer over the ranks of a stage, each with its own weights."""
    _, w_qkv, _, num_heads, scale, causal, *_ = ranks[0]
    of_ranks = [project_qkv(x, one[1], num_heads) for x, one in zip(blocks, ranks, strict=True)]
    q, k, v = (torch.cat(parts, dim=1) for parts in zip(*of_ranks, strict=True))
    factor = (w_qkv.shape[0] // (3 * num_heads)) ** -0.5 if scale is None else scale
    if local_mask:
        local = torch.arange(q.shape[1], device=q.device) % blocks[0].shape[1]
        context = attend(q, k, v, factor, local, local)[0]
    else:
        context = attend_in_order(q, k, v, factor, causal)
    parts = context.flatten(2).chunk(len(ranks), dim=1)
    return [part @ one[2].double().T for part, one in zip(parts, ranks, strict=True)]


def _num_in_stage(inputs_of_all_ranks: list[tuple[Any, ...]]) -> int:
    cp_group = inputs_of_all_ranks[0][6]
    return len(inputs_of_all_ranks) if cp_group is None else len(cp_group.part_of(0))


def _with_options(
    inputs_of_all_ranks: list[tuple[Any, ...]], scale: float | None, causal: bool
) -> list[tuple[Any, ...]]:
    return [(*one[:4], scale, causal, *one[6:]) for one in inputs_of_all_ranks]


def _grid(size: Size, world_size: int) -> tuple[int, int]:
    pp = min(size["pp"], world_size)
    return pp, world_size // pp


def _block(size: Size, cp: int) -> int:
    return int(size["block"] if "block" in size else size["total"] // cp)
