"""Judge's side of fla_gated_deltanet_cp.

The baseline is chunked, where the catalogue's loops over tokens, and packs q with k and gate with beta. Some rows of q
and k are short or zero, so that the bound on their norm shows. In some draws of tiny sizes a gate is so large that a
softplus by its formula overflows in float32.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import Expected, Region, blocks, relative
from pkb.problems._delta_rule import recurrence, unit, with_short_rows
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# Where `batch` and heads are not given, there are 1 or 2 sequences, 2 W query heads, and 1 to 3 times as many value
# heads, with the draw. `heads` is rounded up to a multiple of W.
PROBLEM = Problem(
    number=75,
    group="attention",
    parallelism="cp (Ulysses style)",
    origin="flash-linear-attention Gated DeltaNet (Qwen3-Next style) under context parallelism",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"length": 5, "keys": 8, "values": 6},
        "tiny_chunks": {"length": 21, "keys": 8, "values": 6},
        "base": {"batch": 1, "length": 64, "heads": 6, "share": 1, "keys": 256, "values": 512},
        "large": {"batch": 1, "length": 4096, "heads": 16, "share": 2, "keys": 128, "values": 128},
    },
    check=relative(bf16=1e-2, fp32=1e-4, rows=blocks(bf16=1e-2, fp32=1e-4, over=(0, 1, 3))),
)

EPS = 1e-6


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    index, world_size = draw.index, draw.world_size
    num_queries, share = _heads(size, world_size), size.get("share", 1 + index % 3)
    tokens = (size.get("batch", 1 + index % 2), size["length"])
    heads = num_queries * share
    q, k = (
        with_short_rows(
            draw.normal(*tokens, num_queries, size["keys"]),
            draw.uniform(0.0, 1.0, *tokens, num_queries),
            factor=3e-7 * size["keys"] ** -0.5,
        )
        for _ in range(2)
    )
    v, beta = draw.normal(*tokens, heads, size["values"]), draw.uniform(0.0, 1.0, *tokens, heads).to(draw.dtype)
    # Decays of 0.85 to 0.999 a token: with less the state would not cross the ranks.
    gate = draw.normal(*tokens, heads).float() - 2
    gate[..., ::3] -= 3
    if "batch" not in size and index % 2 == 1:
        gate[0, 1, 1] = 95.0
    a_log = draw.uniform(-0.6, 0.2, heads // world_size).to(draw.dtype)
    arguments = (q, k, v, gate.to(draw.dtype), beta, a_log, draw.normal(heads // world_size, scale=0.2))
    if index % 3 == 0:
        return arguments
    return (*arguments, Group.whole(world_size) if index % 3 == 1 else None)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Expected]:
    first = (Region("first tokens of a rank", (slice(None), slice(0, 16))),)
    return [Expected(o, regions=first if r > 0 else ()) for r, o in enumerate(_answer(inputs_of_all_ranks))]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Tokens are exchanged for heads (five tensors there and o back, all but the own part); or each rank takes its own
    # tokens and hands its last state, float32, to the next, if that is less; with more than two ranks together with
    # what its tokens do to any state, [K, K], lest ranks wait for each other in turn. Inputs and output are touched
    # once. A token takes 7 K V for each value head.
    num_queries = _heads(size, world_size)
    heads = num_queries * size.get("share", 2)
    num_keys, num_values, batch = size["keys"], size["values"], size.get("batch", 1.5)
    per_token = 2 * num_keys * num_queries + (2 * num_values + 2) * heads
    token_bytes = batch * size["length"] * per_token * dtype_bytes(dtype)
    state_bytes = batch * heads * num_keys * (num_values + (num_keys if world_size > 2 else 0)) * 4
    return Cost(
        link_bytes=min(token_bytes * (world_size - 1) / world_size, state_bytes),
        hbm_bytes=token_bytes,
        flops=7 * num_keys * num_values * batch * size["length"] * heads,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    ranks, calls = range(world_size), [one[:7] for one in inputs_of_all_ranks]
    values = [one.value for one in expected]
    num_queries, heads, num_keys = calls[0][1].shape[2], calls[0][2].shape[2], calls[0][1].shape[3]

    def changed(change: Any, *positions: int) -> list[torch.Tensor]:
        """The answer for some arguments changed."""
        return _answer([tuple(change(a) if i in positions else a for i, a in enumerate(one)) for one in calls])

    yield "state decayed after the comparison", _answer(calls, is_decayed_late=True)
    yield "queries not scaled", [one * num_keys**0.5 for one in values]
    yield "keys scaled too", _answer(calls, key_scale=num_keys**-0.5)
    yield "another bound on the norm", _answer(calls, eps=1e-12)
    yield "step sizes through sigmoid", changed(lambda beta: beta.double().sigmoid(), 4)
    yield "decays left out", changed(lambda gate: torch.full_like(gate, -1e4), 3)
    if world_size * calls[0][1].shape[1] >= 20:
        # Over fewer tokens small changes of the decays make no difference.
        yield "a_log left out", changed(torch.zeros_like, 5)
        yield "dt_bias left out", changed(torch.zeros_like, 6)
    yield "softplus left out", changed(lambda gate: gate.double().clamp_min(1e-9).expm1().log(), 3)
    yield "output of the token before", [one.roll(1, 1) for one in values]
    if heads > num_queries:
        order = torch.arange(heads, device=values[0].device) % num_queries
        repeated = [(q[:, :, order], k[:, :, order], *rest) for q, k, *rest in calls]
        yield "query heads dealt out to value heads", _answer(repeated)
    if world_size == 1:
        return
    turned = [(*one[:5], *calls[r - 1][5:]) for r, one in enumerate(calls)]
    yield "another rank's a_log and dt_bias", _answer(turned)
    own = [(*one[:5], *(one[i].repeat(world_size) for i in (5, 6))) for one in calls]
    yield "own a_log and dt_bias for all heads", [_answer([*own[r:], *own[:r]])[-r % world_size] for r in ranks]
    yield "sequence by descending rank", _in_other_order(calls, [world_size - 1 - r for r in ranks])
    alone = [(*one[:5], *(torch.cat([c[i] for c in calls]) for i in (5, 6))) for one in calls]
    yield "every rank starts from an empty state", [_answer([one])[0] for one in alone]
    block = heads // world_size
    yield "blocks of heads in order of arrival", [one.roll(-block * r, 2) for r, one in enumerate(values)]
    if world_size > 2:
        two = [_answer(alone[max(0, r - 1) : r + 1])[-1] for r in ranks]
        yield "state of the rank before alone", two


def _answer(
    inputs_of_all_ranks: list[tuple[Any, ...]],
    is_decayed_late: bool = False,
    key_scale: float = 1.0,
    eps: float = EPS,
) -> list[torch.Tensor]:
    """What each rank returns; the options stand for mistakes. a_log and dt_bias are joined, or whole on the first."""
    q, k, v, gate, beta = (torch.cat([one[i].double() for one in inputs_of_all_ranks], dim=1) for i in range(5))
    heads = v.shape[2]
    a_log, dt_bias = (torch.cat([one[i].double() for one in inputs_of_all_ranks])[:heads] for i in (5, 6))
    decay = (-a_log.exp() * torch.logaddexp(gate + dt_bias, torch.zeros_like(gate))).exp()
    of_head = torch.arange(heads, device=q.device) // (heads // q.shape[2])
    queries = unit(q, eps)[:, :, of_head] * q.shape[-1] ** -0.5
    keys = unit(k, eps)[:, :, of_head] * key_scale
    o = recurrence(queries, keys, v, decay.unsqueeze(-1), beta, is_decayed_late)
    return list(o.chunk(len(inputs_of_all_ranks), dim=1))


def _in_other_order(calls: list[tuple[Any, ...]], order: list[int]) -> list[torch.Tensor]:
    """The answer for tokens in another order of ranks, for each rank its own tokens' part."""
    answers = _answer([(*calls[source][:5], *calls[r][5:]) for r, source in enumerate(order)])
    return [answers[order.index(r)] for r in range(len(calls))]


def _heads(size: Size, world_size: int) -> int:
    """Query heads."""
    return -(-int(size["heads"]) // world_size) * world_size if "heads" in size else 2 * world_size
