"""Judge's side of ulysses_attention_e2e.

The catalogue leaves H_o open: it differs from H and from nh d at tiny sizes. A number of heads that W does not divide
is not judged. The baseline sends q, k and v in one exchange: a second one would be overhead that nobody has to pay.
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

# `tokens` is what one rank holds, `total` what all ranks hold, at least one each. `hidden` is H, `out` H_o.
PROBLEM = Problem(
    number=39,
    group="attention",
    parallelism="sp",
    origin="DeepSpeed-Ulysses attention block, as in VeOmni",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"batch": 2, "tokens": 5, "heads": 8, "d": 6, "hidden": 40, "out": 36, "causal": True, "own": True},
        "tiny_open": {
            "batch": 2,
            "tokens": 6,
            "heads": 8,
            "d": 4,
            "hidden": 32,
            "out": 28,
            "causal": False,
            "own": True,
        },
        "base": {"batch": 16, "total": 16, "heads": 8, "d": 64, "hidden": 512, "out": 512, "causal": False},
        "large": {"batch": 1, "tokens": 4096, "heads": 32, "d": 128, "hidden": 4096, "out": 4096, "causal": True},
    },
    # Rounding of sharp scores moves single elements by more than the usual bound allows.
    check=relative(bf16=2e-2, fp32=2e-3, elements=Bound(rms=0.25, rel=0.05)),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    hidden, width = size["hidden"], size["heads"] * size["d"]
    x = draw.normal(size["batch"], _num_tokens(size, draw.world_size), hidden) + 0.2 * draw.rank
    normal = draw.normal if size.get("own", False) else draw.shared_normal
    w_qkv = draw_w_qkv(normal, 3 * width, hidden, sharpness=1.7)
    w_o = normal(size["out"], width, scale=width**-0.5)
    group = Group.whole(draw.world_size) if draw.index % 2 == 1 else None
    if group is None and size["heads"] == 8 and not size["causal"]:
        return x, w_qkv, w_o
    return x, w_qkv, w_o, group, size["heads"], size["causal"]


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    num_heads, causal = _options(inputs_of_all_ranks[0])
    q, k, v = _projected(inputs_of_all_ranks, num_heads)
    return _outputs(attend_in_order(q, k, v, q.shape[-1] ** -0.5, causal), inputs_of_all_ranks)


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # q, k, v leave and the outputs come back, all but a rank's own part, and as much the other way. Activations and
    # weights pass device memory once; q, k, v and the outputs once each where they are written and read.
    batch, tokens, hidden, out = size["batch"], _num_tokens(size, world_size), size["hidden"], size["out"]
    width, num_bytes, rows = size["heads"] * size["d"], dtype_bytes(dtype), batch * _num_tokens(size, world_size)
    attention = attention_flops(batch, tokens * world_size, tokens * world_size, width, size["causal"]) / world_size
    return Cost(
        link_bytes=4 * rows * width * num_bytes * (world_size - 1) / world_size,
        hbm_bytes=(rows * (hidden + out) + width * (3 * hidden + out)) * num_bytes,
        flops=2 * rows * width * (3 * hidden + out) + attention,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    num_heads, causal = _options(inputs_of_all_ranks[0])
    q, k, v = _projected(inputs_of_all_ranks, num_heads)
    scale = q.shape[-1] ** -0.5

    def answers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float = scale) -> list[torch.Tensor]:
        return _outputs(attend_in_order(q, k, v, scale, causal), inputs_of_all_ranks)

    yield "heads attend to heads within a token", _outputs(_over_heads(q, k, v, len(expected)), inputs_of_all_ranks)
    yield "v's heads in another order", answers(q, k, v.roll(1, 2))
    first_half, second_half = torch.stack((k, v), dim=3).flatten(2, 3).chunk(2, dim=2)
    yield "interleaved k and v read as halves", answers(q, first_half, second_half)
    yield "products not scaled", answers(q, k, v, 1.0)
    yield "scaled by the width of the model", answers(q, k, v, inputs_of_all_ranks[0][0].shape[2] ** -0.5)
    right = attend_in_order(q, k, v, scale, causal)
    yield "heads put back in another order", _outputs(right.roll(1, 2), inputs_of_all_ranks)
    yield "head and column exchanged", _outputs(right.transpose(2, 3), inputs_of_all_ranks)
    by_head = [(x, read_head_by_head(w_qkv, num_heads), *rest) for x, w_qkv, *rest in inputs_of_all_ranks]
    yield "rows of w_qkv taken head by head", oracle(by_head, len(expected))
    if causal:
        yield "mask left out", _outputs(attend(q, k, v, scale)[0], inputs_of_all_ranks)
    if len(expected) > 1:
        yield from _peer_misses(expected, inputs_of_all_ranks)


def _peer_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    num_heads, causal = _options(inputs_of_all_ranks[0])
    q, k, v = _projected(inputs_of_all_ranks, num_heads)
    scale, length = q.shape[-1] ** -0.5, q.shape[1]
    yield "own tokens alone", [oracle([one], 1)[0] for one in inputs_of_all_ranks]
    if causal:
        positions = torch.arange(length, device=q.device)
        local = positions % (length // world_size)
        yield "mask in local positions", _outputs(attend(q, k, v, scale, local, local)[0], inputs_of_all_ranks)
        backwards = positions.view(world_size, -1).flip(0).flatten()
        masked = attend(q, k, v, scale, backwards, backwards)[0]
        yield "ranks' tokens by descending rank", _outputs(masked, inputs_of_all_ranks)
    first = inputs_of_all_ranks[0]
    yield (
        "rank 0's w_qkv on every rank",
        oracle([(x, first[1], *one) for x, _, *one in inputs_of_all_ranks], world_size),
    )
    outs = [(x, w_qkv, first[2], *one) for x, w_qkv, _, *one in inputs_of_all_ranks]
    yield "rank 0's w_o on every rank", oracle(outs, world_size)
    yield "another rank's tokens", [expected[rank - 1] for rank in range(world_size)]


def _options(arguments: tuple[Any, ...]) -> tuple[int, bool]:
    """num_heads and causal, with their defaults."""
    return (arguments[4], arguments[5]) if len(arguments) > 3 else (8, False)


def _projected(inputs_of_all_ranks: list[tuple[Any, ...]], num_heads: int) -> tuple[torch.Tensor, ...]:
    """q, k and v of the whole sequence."""
    of_ranks = [project_qkv(x, w_qkv, num_heads) for x, w_qkv, *_ in inputs_of_all_ranks]
    return tuple(torch.cat(parts, dim=1) for parts in zip(*of_ranks, strict=True))


def _outputs(out: torch.Tensor, inputs_of_all_ranks: list[tuple[Any, ...]]) -> list[torch.Tensor]:
    """Each rank's tokens times its w_o."""
    parts = out.flatten(2).chunk(len(inputs_of_all_ranks), dim=1)
    return [part @ one[2].double().T for part, one in zip(parts, inputs_of_all_ranks, strict=True)]


def _over_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, world_size: int) -> torch.Tensor:
    """What products over the last two axes of a rank's [B, T, heads, d] give."""
    q_parts, k_parts, v_parts = (
        torch.unflatten(x.flatten(0, 1), 1, (world_size, -1)).transpose(1, 2) for x in (q, k, v)
    )
    return attend(q_parts, k_parts, v_parts, q.shape[-1] ** -0.5)[0].transpose(1, 2).reshape(q.shape)


def _num_tokens(size: Size, world_size: int) -> int:
    return int(size["tokens"] if "tokens" in size else max(1, size["total"] // world_size))
