"""Judge's side of ring_attention.

`large` is causal and `large_open` is not. Under the mask costs count the work as if it were dealt out evenly: the
catalogue leaves it to the solution to move work from late to early ranks.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._attention import attend, attend_in_order, attention_flops
from pkb.problems._check import ELEMENTS, Expected, Region, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# `block` is S, `total` W S. Without `causal` mask and scale vary with the draw.
PROBLEM = Problem(
    number=54,
    group="attention",
    parallelism="cp",
    origin="ring-flash-attention (ring attention by blockwise softmax merging)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"batch": 2, "block": 5, "heads": 3, "d": 8},
        "base": {"batch": 16, "total": 16, "heads": 8, "d": 64, "causal": True},
        "large": {"batch": 1, "block": 4096, "heads": 32, "d": 128, "causal": True},
        "large_open": {"batch": 1, "block": 4096, "heads": 32, "d": 128, "causal": False},
    },
    check=relative(bf16=1.5e-2, fp32=2e-3, elements=ELEMENTS),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    shape = (size["batch"], _block(size, draw.world_size), size["heads"], size["d"])
    q, k, v = draw.normal(*shape, scale=2.0), draw.normal(*shape), draw.normal(*shape)
    # Scores in the hundreds: exp overflows without a maximum.
    q[:, :, 0] *= 30
    k[:, -1] *= 2
    # Off by one at the edge of a block has to show.
    v[:, 0] += 6
    v[:, -1] -= 6 + draw.rank
    causal = size.get("causal", draw.index % 3 != 0)
    scale = 0.4 if "causal" not in size and draw.index % 2 == 1 else None
    group = Group.whole(draw.world_size) if draw.index % 4 in (1, 2) else None
    if group is None and scale is None and not causal:
        return q, k, v
    return q, k, v, scale, causal, group


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Expected]:
    scale, causal = _options(inputs_of_all_ranks[0])
    q, k, v = _joined(inputs_of_all_ranks)
    return _by_rank(attend_in_order(q, k, v, scale, causal), world_size)


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Keys and values of all peers arrive, or a mean of half of them under the mask; each is read from the memory of
    # its owner. The own block passes memory once, as the queries and the result do.
    block, width = _block(size, world_size), size["heads"] * size["d"]
    causal = size.get("causal", False)
    num_bytes = size["batch"] * block * width * dtype_bytes(dtype)
    num_blocks = (world_size - 1) / (2 if causal else 1)
    return Cost(
        link_bytes=2 * num_blocks * num_bytes,
        hbm_bytes=(4 + 2 * num_blocks) * num_bytes,
        flops=attention_flops(size["batch"], block, block * world_size, width, causal),
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    scale, causal = _options(inputs_of_all_ranks[0])
    q, k, v = _joined(inputs_of_all_ranks)
    positions = torch.arange(q.shape[1], device=q.device)
    if causal:
        yield "mask left out", _by_rank(attend(q, k, v, scale)[0], world_size)
        late = attend(q, k, v, scale, positions + 1, positions)[0]
        yield "mask one position late", _by_rank(late, world_size)
    default = q.shape[-1] ** -0.5
    if scale != default:
        yield "scale not used", _by_rank(attend_in_order(q, k, v, default, causal), world_size)
    yield "scores not scaled", _by_rank(attend_in_order(q, k, v, 1.0, causal), world_size)
    first = torch.cat((k[:, :1], k[:, :-1]), dim=1)
    yield "keys one position off", _by_rank(attend_in_order(q, first, v, scale, causal), world_size)
    yield "softmax without a maximum", _by_rank(_overflowing(q, k, v, scale), world_size)
    if world_size > 1:
        yield from _peer_misses(expected, inputs_of_all_ranks)


def _peer_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    ranks = range(world_size)
    scale, causal = _options(inputs_of_all_ranks[0])
    q, k, v = _joined(inputs_of_all_ranks)
    positions = torch.arange(q.shape[1], device=q.device).view(world_size, -1)
    yield "own block alone", [oracle([one], 1)[0].value for one in inputs_of_all_ranks]
    yield "another rank's queries", [expected[rank - 1].value for rank in ranks]
    own = [one[0] for one in inputs_of_all_ranks]
    if causal:
        local = positions[:1].expand(world_size, -1).flatten()
        yield "mask in local positions", _by_rank(attend(q, k, v, scale, local, local)[0], world_size)
    if causal and world_size > 2:
        # Block r - step taken for block r + step, and the reverse.
        mirrored = [positions[[(2 * r - s) % world_size for s in ranks]].flatten() for r in ranks]
        turned = [attend(own[r], k, v, scale, positions[r], mirrored[r])[0] for r in ranks]
        yield "ring in the other direction", turned
    # The block of rank r - 1 was overwritten by that of rank r - 2 before rank r had read it.
    stale = [positions[[(s - 1) % world_size if s == (r - 1) % world_size else s for s in ranks]] for r in ranks]
    parts = [_at(k, v, place.flatten()) for place in stale]
    answers = [attend_in_order(own[r], *parts[r], scale, causal, int(positions[r, 0])) for r in ranks]
    yield "a block overwritten too early", answers
    if not causal:
        outs = torch.stack([attend(q, one[1], one[2], scale)[0] for one in inputs_of_all_ranks])
        yield "mean of the blocks' outputs", _by_rank(outs.mean(dim=0), world_size)
        short = [(one[1][:, :-1], one[2][:, :-1]) for one in inputs_of_all_ranks]
        keys, values = (torch.cat(part, dim=1) for part in zip(*short, strict=True))
        yield "last key of every block left out", _by_rank(attend(q, keys, values, scale)[0], world_size)


def _options(arguments: tuple[Any, ...]) -> tuple[float, bool]:
    """Scale and causal, with their defaults."""
    scale, causal = arguments[3:5] if len(arguments) > 3 else (None, False)
    return arguments[0].shape[-1] ** -0.5 if scale is None else scale, causal


def _joined(inputs_of_all_ranks: list[tuple[Any, ...]]) -> tuple[torch.Tensor, ...]:
    """q, k, v of the whole sequence."""
    return tuple(torch.cat([one[i] for one in inputs_of_all_ranks], dim=1) for i in range(3))


def _by_rank(out: torch.Tensor, world_size: int) -> list[Expected]:
    """The ranks' blocks, their first and last rows also judged alone."""
    regions = (
        Region("first query of the block", (slice(None), 0)),
        Region("last query of the block", (slice(None), -1)),
    )
    return [Expected(part, regions=regions) for part in out.chunk(world_size, dim=1)]


def _at(k: torch.Tensor, v: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return k[:, places], v[:, places]


def _overflowing(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """exp of the scores in float32, divided by its sum: no mask, since that mends nothing."""
    weights = torch.einsum("bqhd,bkhd->bhqk", q.float() * scale, k.float()).exp()
    return torch.einsum("bhqk,bkhd->bqhd", weights / weights.sum(dim=-1, keepdim=True), v.float()).double()


def _block(size: Size, world_size: int) -> int:
    return int(size["block"] if "block" in size else size["total"] // world_size)
