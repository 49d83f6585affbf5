"""Judge's side of fla_kimi_delta_attention_cp_tp.

The baseline is chunked and hands states on, where the catalogue's gathers all tokens and loops over them. The catalogue
counts 4 K numbers a token in an exchange of tokens; q, k and g are 3 K. Some rows of q and k are short or zero, so that
the bound on their norm shows.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import Expected, Region, relative
from pkb.problems._delta_rule import recurrence, unit, with_short_rows
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# Without `batch` it is 1 or 2 with the draw.
PROBLEM = Problem(
    number=74,
    group="attention",
    parallelism="cp + tp",
    origin="flash-linear-attention Kimi Delta Attention with context parallelism",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"length": 7, "heads": 3, "keys": 8, "values": 6},
        "tiny_chunks": {"length": 37, "heads": 2, "keys": 8, "values": 6},
        "base": {"batch": 1, "length": 64, "heads": 16, "keys": 128, "values": 128},
        "large": {"batch": 1, "length": 2048, "heads": 32, "keys": 128, "values": 128},
    },
    check=relative(bf16=1e-2, fp32=1e-4),
)

EPS = 1e-12


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    index, world_size = draw.index, draw.world_size
    heads, num_keys = size["heads"], size["keys"]
    tokens = (size.get("batch", 1 + index % 2), size["length"], heads)
    q, k = (
        with_short_rows(draw.normal(*tokens, num_keys), draw.uniform(0.0, 1.0, *tokens), factor=1e-9) for _ in range(2)
    )
    v, beta = draw.normal(*tokens, size["values"]), draw.normal(*tokens)
    # Decays of 0.8 to 1 a token: with less the state would not reach the next rank.
    g = (2 * draw.normal(*tokens, num_keys).float() - 4).to(draw.dtype)
    tp = _layout(world_size)
    a_log = draw.shared_uniform(-0.3, 0.3, tp, heads)[draw.rank % tp].to(draw.dtype)
    dt_bias = draw.shared_normal(tp, heads * num_keys, scale=0.3)[draw.rank % tp]
    arguments = (q, k, v, g, beta, a_log, dt_bias)
    if tp > 1:
        return (*arguments, Group.outer(world_size, tp), Group.inner(world_size, tp))
    if index % 3 == 0:
        return arguments
    return (*arguments, Group.whole(world_size)) if index % 3 == 1 else (*arguments, None, None)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Expected]:
    tp = _layout(world_size)
    first = (Region("first tokens of a rank", (slice(None), slice(0, 16))),)
    return [Expected(o, regions=first if rank >= tp else ()) for rank, o in enumerate(_answer(inputs_of_all_ranks))]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Each rank takes its own tokens and hands its last state, float32, to the next, with more than two CP ranks
    # together with what its tokens do to any state, [K, K], lest ranks wait for each other in turn; or tokens are
    # exchanged for heads (q, k, g, v, beta there and o back, all but the own part), if that is less. Two TP ranks add
    # o by halves, a tensor of it each way. Inputs and output are touched once. A token takes 7 K V for each head.
    tp = _layout(world_size)
    cp = world_size // tp
    num_keys, num_values, num_bytes = size["keys"], size["values"], dtype_bytes(dtype)
    rows = size.get("batch", 1.5) * size["heads"]
    token_bytes = rows * size["length"] * (3 * num_keys + 2 * num_values + 1) * num_bytes
    state_bytes = rows * num_keys * (num_values + (num_keys if cp > 2 else 0)) * 4
    return Cost(
        link_bytes=min(token_bytes * (cp - 1) / cp, state_bytes)
        + (tp - 1) * rows * size["length"] * num_values * num_bytes,
        hbm_bytes=token_bytes,
        flops=7 * num_keys * num_values * rows * size["length"],
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    ranks, tp = range(world_size), _layout(world_size)
    calls = [one[:7] for one in inputs_of_all_ranks]
    values = [one.value for one in expected]
    num_keys = calls[0][1].shape[-1]

    def changed(position: int, change: Any) -> list[torch.Tensor]:
        """The answer for one argument changed."""
        return _answer([(*one[:position], change(one[position]), *one[position + 1 :]) for one in calls])

    yield "state decayed after the comparison", _answer(calls, is_decayed_late=True)
    yield "one decay for a head", _answer(calls, is_one_decay=True)
    yield "queries not scaled", [one * num_keys**0.5 for one in values]
    yield "another bound on the norm", _answer(calls, eps=1e-6)
    yield "keys not normalized", _answer(calls, is_key_unit=False)
    yield (
        "step sizes cut to [0, 1] without sigmoid",
        changed(4, lambda beta: torch.logit(beta.double().clamp(1e-9, 1 - 1e-9))),
    )
    yield "a_log left out", changed(5, torch.zeros_like)
    yield "dt_bias left out", changed(6, torch.zeros_like)
    yield "dt_bias as [K, H]", changed(6, lambda bias: bias.view(num_keys, -1).mT.reshape(-1))
    yield "decays left out", changed(3, lambda g: torch.full_like(g, -1e4))
    yield "output of the token before", [one.roll(1, 1) for one in values]
    if world_size == 1:
        return
    cp = world_size // tp
    backwards = _answer([one for p in reversed(range(cp)) for one in calls[p * tp : (p + 1) * tp]])
    yield "sequence by descending rank", [backwards[(cp - 1 - r // tp) * tp + r % tp] for r in ranks]
    fresh = [_answer(calls[p * tp : (p + 1) * tp], tp)[r] for p in range(cp) for r in range(tp)]
    yield "every rank starts from an empty state", fresh
    if cp > 2 and values[0].shape[1] <= 16:
        # More tokens than that forget the state of two ranks before.
        two = [_answer(calls[max(0, p - 1) * tp : (p + 1) * tp], tp)[r - tp] for p in range(cp) for r in range(tp)]
        yield "state of the rank before alone", two
    if tp > 1:
        apart = [_answer(calls[r::tp], 1) for r in range(tp)]
        yield "not summed over the TP group", [apart[r % tp][r // tp] for r in ranks]
        yield "mean over the TP group", [one / tp for one in values]
        half = world_size // 2
        blocks = [_answer(calls[:half], 1), _answer(calls[half:], 1)]
        yield "groups exchanged", [blocks[0][r % half] + blocks[1][r % half] for r in ranks]


def _answer(
    inputs_of_all_ranks: list[tuple[Any, ...]],
    tp: int | None = None,
    is_decayed_late: bool = False,
    is_one_decay: bool = False,
    is_key_unit: bool = True,
    eps: float = EPS,
) -> list[torch.Tensor]:
    """What each rank returns; the options stand for mistakes. `tp` None: as many TP ranks as the layout has."""
    world_size = len(inputs_of_all_ranks)
    tp = _layout(world_size) if tp is None else tp
    parts = []
    for place in range(tp):
        own = inputs_of_all_ranks[place::tp]
        q, k, v, g, beta = (torch.cat([one[i].double() for one in own], dim=1) for i in range(5))
        rate = own[0][5].double().exp().unsqueeze(-1) * (g + own[0][6].double().view(g.shape[2:]))
        decay = (-5 * rate.sigmoid()).exp()
        if is_one_decay:
            decay = decay.mean(dim=-1, keepdim=True)
        keys = unit(k, eps) if is_key_unit else k * k.shape[-1] ** -0.5
        queries = unit(q, eps) * k.shape[-1] ** -0.5
        parts.append(recurrence(queries, keys, v, decay, beta.sigmoid(), is_decayed_late))
    total = torch.stack(parts).sum(dim=0)
    return [part for part in total.chunk(world_size // tp, dim=1) for _ in range(tp)]


def _layout(world_size: int) -> int:
    """TP ranks, which are adjacent."""
    return 2 if world_size >= 4 else 1
