"""Judge's side of ring_attention_tp.

Tiny sizes vary mask, scale and, with `tiny_wide`, the grid; the catalogue fixes tp = min(2, W) and names no scale. A
group that is None stands for the default group, so it is passed only where the group holds all ranks. Under the mask
costs count attention as if it were dealt out evenly.
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

# `tp` is an upper bound, since no group exceeds W; `block` is S, `total` cp S; `heads` is num_heads, `hidden` Hd.
PROBLEM = Problem(
    number=55,
    group="attention",
    parallelism="tp + cp",
    origin='Megatron-LM context parallelism with tensor parallelism ("tp-cp" rank order) over ring attention',
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"batch": 2, "block": 5, "heads": 4, "d": 8, "hidden": 36, "tp": 2},
        "tiny_wide": {"batch": 1, "block": 6, "heads": 8, "d": 8, "hidden": 44, "tp": 4},
        "base": {"batch": 16, "total": 16, "heads": 8, "d": 64, "hidden": 512, "tp": 2, "causal": True},
        "large": {"batch": 1, "block": 4096, "heads": 32, "d": 128, "hidden": 4096, "tp": 2, "causal": True},
    },
    # Rounding of sharp scores moves single elements by more than the usual bound allows.
    check=relative(bf16=2e-2, fp32=2e-3, elements=Bound(rms=0.25, rel=0.05)),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    tp, cp = _grid(size, draw.world_size)
    place, position = draw.rank % tp, draw.rank // tp
    hidden, width = size["hidden"], size["heads"] * size["d"]
    x = draw.shared_normal(cp, size["batch"], _block(size, cp), hidden)[position].clone()
    w_qkv = draw_w_qkv(draw.shared_normal, tp, 3 * width // tp, hidden, sharpness=1.6)[place].clone()
    w_o = draw.shared_normal(tp, hidden, width // tp, scale=width**-0.5)[place].clone()
    causal = size.get("causal", draw.index % 3 != 0)
    scale = 0.6 if "causal" not in size and draw.index % 2 == 1 else None
    tp_group: Group | None = Group.inner(draw.world_size, tp)
    cp_group: Group | None = Group.outer(draw.world_size, tp)
    if draw.index % 4 > 1:
        tp_group, cp_group = (None if cp == 1 else tp_group), (None if tp == 1 else cp_group)
    return x, w_qkv, w_o, size["heads"], scale, causal, tp_group, cp_group


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    scale, causal, tp = _options(inputs_of_all_ranks)
    q, k, v = _projected(inputs_of_all_ranks, tp)
    return _outputs(attend_in_order(q, k, v, scale, causal), inputs_of_all_ranks, tp)


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Keys and values of the CP peers arrive, or half of them under the mask; y is all-reduced over TP by slices, or
    # added by a switch. Memory passes: x, weights and y once, keys and values of peers.
    tp, cp = _grid(size, world_size)
    block, num_bytes, hidden = _block(size, cp), dtype_bytes(dtype), size["hidden"]
    rows, width, causal = size["batch"] * block, size["heads"] * size["d"] // tp, size.get("causal", False)
    num_blocks = (cp - 1) / (2 if causal else 1)
    peers = 2 * num_blocks * rows * width * num_bytes
    return Cost(
        link_bytes=peers + rows * hidden * num_bytes * min(2 * (tp - 1) / tp, 1 + 1 / tp),
        hbm_bytes=peers + (2 * rows * hidden + 4 * hidden * width) * num_bytes,
        flops=8 * rows * hidden * width + attention_flops(size["batch"], block, block * cp, width, causal),
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    scale, causal, tp = _options(inputs_of_all_ranks)
    q, k, v = _projected(inputs_of_all_ranks, tp)

    def answers(scale: float) -> list[torch.Tensor]:
        return _outputs(attend_in_order(q, k, v, scale, causal), inputs_of_all_ranks, tp)

    x, w_qkv, _, num_heads, *_ = inputs_of_all_ranks[0]
    yield "scaled by the width of the model", answers(x.shape[2] ** -0.5)
    if tp > 1:
        yield "head width from the full number of heads", answers((w_qkv.shape[0] / (3 * num_heads)) ** -0.5)
    if scale != q.shape[-1] ** -0.5:
        yield "scale not used", answers(q.shape[-1] ** -0.5)
    if causal:
        yield "mask left out", _outputs(attend(q, k, v, scale)[0], inputs_of_all_ranks, tp)
    heads = num_heads // tp
    if heads > 1:
        by_head = [(one[0], read_head_by_head(one[1], heads), *one[2:]) for one in inputs_of_all_ranks]
        yield "rows of w_qkv taken head by head", oracle(by_head, len(expected))
    flat = attend(torch.zeros_like(q), k, v, scale)[0]
    yield "mean of the values", _outputs(flat, inputs_of_all_ranks, tp)
    if len(expected) > 1:
        yield from _peer_misses(expected, inputs_of_all_ranks)


def _peer_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    scale, causal, tp = _options(inputs_of_all_ranks)
    cp = world_size // tp
    q, k, v = _projected(inputs_of_all_ranks, tp)
    if tp > 1:
        parts = _parts(attend_in_order(q, k, v, scale, causal), inputs_of_all_ranks, tp)
        yield "own heads alone", parts
        yield "mean over TP", [one / tp for one in expected]
        yield "own heads added twice", [one + part for one, part in zip(expected, parts, strict=True)]
    if tp > 1 and cp > 1:
        everything = torch.stack(expected[::tp]).sum(dim=0)
        yield "sum over all ranks", [everything] * world_size
        # Rank t cp + c in place of c tp + t.
        order = [t * cp + c for c in range(cp) for t in range(tp)]
        groups = inputs_of_all_ranks[0][6:]
        swapped = oracle([(*inputs_of_all_ranks[rank][:6], *groups) for rank in order], world_size)
        yield "TP and CP place exchanged", [swapped[order.index(rank)] for rank in range(world_size)]
    if cp > 1:
        blocks = zip(*(tensor.chunk(cp, dim=1) for tensor in (q, k, v)), strict=True)
        own = [attend_in_order(own_q, own_k, own_v, scale, causal) for own_q, own_k, own_v in blocks]
        yield "own block of the sequence alone", _outputs(torch.cat(own, dim=1), inputs_of_all_ranks, tp)
        yield "another block's queries", expected[-tp:] + expected[:-tp]
        if causal:
            local = torch.arange(q.shape[1], device=q.device) % (q.shape[1] // cp)
            out = attend(q, k, v, scale, local, local)[0]
            yield "mask in local positions", _outputs(out, inputs_of_all_ranks, tp)


def _options(inputs_of_all_ranks: list[tuple[Any, ...]]) -> tuple[float, bool, int]:
    """Scale, causal, and number of ranks in a TP group."""
    _, w_qkv, _, num_heads, scale, causal, tp_group, _ = inputs_of_all_ranks[0]
    tp = len(inputs_of_all_ranks) if tp_group is None else len(tp_group.part_of(0))
    width = w_qkv.shape[0] * tp // (3 * num_heads)
    return width**-0.5 if scale is None else scale, causal, tp


def _projected(inputs_of_all_ranks: list[tuple[Any, ...]], tp: int) -> tuple[torch.Tensor, ...]:
    """q, k and v of all heads and the whole sequence."""
    of_ranks = [project_qkv(x, w_qkv, num_heads // tp) for x, w_qkv, _, num_heads, *_ in inputs_of_all_ranks]
    of_blocks = [zip(*of_ranks[first : first + tp], strict=True) for first in range(0, len(of_ranks), tp)]
    whole_heads = [[torch.cat(parts, dim=2) for parts in block] for block in of_blocks]
    return tuple(torch.cat(parts, dim=1) for parts in zip(*whole_heads, strict=True))


def _outputs(context: torch.Tensor, inputs_of_all_ranks: list[tuple[Any, ...]], tp: int) -> list[torch.Tensor]:
    """Each block's tokens times the w_o of all heads: one deep product in place of a sum of products."""
    blocks = context.flatten(2).chunk(len(inputs_of_all_ranks) // tp, dim=1)
    answers = []
    for c, block in enumerate(blocks):
        w_o = torch.cat([one[2].double() for one in inputs_of_all_ranks[c * tp : (c + 1) * tp]], dim=1)
        answers += [block @ w_o.T] * tp
    return answers


def _parts(context: torch.Tensor, inputs_of_all_ranks: list[tuple[Any, ...]], tp: int) -> list[torch.Tensor]:
    """What each rank adds to the sum over its TP group."""
    blocks = context.flatten(2).chunk(len(inputs_of_all_ranks) // tp, dim=1)
    heads = [part for block in blocks for part in block.chunk(tp, dim=2)]
    return [part @ one[2].double().T for part, one in zip(heads, inputs_of_all_ranks, strict=True)]


def _grid(size: Size, world_size: int) -> tuple[int, int]:
    tp = min(size["tp"], world_size)
    return tp, world_size // tp


def _block(size: Size, cp: int) -> int:
    return int(size["block"] if "block" in size else size["total"] // cp)
