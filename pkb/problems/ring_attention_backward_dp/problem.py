"""Judge's side of ring_attention_backward_dp.

`large` is causal and `large_open` is not. Tiny sizes vary mask and scale; `tiny_single` has no replicas (dp_group None,
or one rank): the catalogue fixes dp = min(2, W) and names no scale. Costs count the pull of q, dout, lse and delta with
sums of dq in the working dtype, which is the cheapest exchange, and under the mask work that is dealt out evenly.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._attention import MAX_SCORES, attend, attention_flops
from pkb.problems._check import relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# `dp` is an upper bound, since no group exceeds W; `block` is S, `total` cp S.
PROBLEM = Problem(
    number=57,
    group="attention",
    parallelism="cp + dp",
    origin='ring-flash-attention backward under Megatron-LM\'s "cp-dp" order',
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"batch": 2, "block": 5, "heads": 3, "d": 8, "dp": 2},
        "tiny_single": {"batch": 1, "block": 6, "heads": 3, "d": 8, "dp": 1},
        "base": {"batch": 16, "total": 16, "heads": 8, "d": 64, "dp": 2, "causal": False},
        "large": {"batch": 1, "block": 4096, "heads": 32, "d": 128, "dp": 2, "causal": True},
        "large_open": {"batch": 1, "block": 4096, "heads": 32, "d": 128, "dp": 2, "causal": False},
    },
    check=relative(bf16=2e-2, fp32=2e-3),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    dp, cp = _grid(size, draw.world_size)
    replica, place = draw.rank // cp, draw.rank % cp
    batch, block, rest = size["batch"], _block(size, cp), (size["heads"], size["d"])
    causal = size.get("causal", draw.index % 3 != 0)
    given = 0.4 if "causal" not in size and draw.index % 2 == 1 else None
    q = draw.normal(batch, block, *rest, scale=2.0)
    # Every rank draws the keys and values of all blocks: out and lse are those of the whole sequence.
    keys, values = (draw.shared_normal(dp, batch, cp, block, *rest)[replica] for _ in range(2))
    keys[:, :, -1] *= 2
    positions = torch.arange(cp * block, device=draw.device)
    own = positions[place * block : (place + 1) * block]
    scale = size["d"] ** -0.5 if given is None else given
    out, lse = attend(q, keys.flatten(1, 2), values.flatten(1, 2), scale, own if causal else None, positions)
    dout = draw.normal(batch, block, *rest) * (1 + replica)
    dout[:, 0] *= 3
    k, v = keys[:, place].clone(), values[:, place].clone()
    may_be_none = dp == 1 and draw.index % 4 > 1
    cp_group = None if may_be_none else Group.inner(draw.world_size, cp)
    dp_group = None if dp == 1 and draw.index % 2 == 0 else Group.outer(draw.world_size, cp)
    return dout, q, k, v, out.to(draw.dtype).contiguous(), lse.float(), given, causal, cp_group, dp_group


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[tuple[torch.Tensor, ...]]:
    return _averaged([_gradients(replica) for replica in _replicas(inputs_of_all_ranks)])


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Of every peer q, dout, lse and delta arrive, and part of dq comes back from it, or half of all that under the
    # mask; dq, dk, dv are all-reduced over DP by slices, or added by a switch. Memory passes: five operands, lse and
    # three results once, and what comes from peers.
    dp, cp = _grid(size, world_size)
    block, num_bytes, causal = _block(size, cp), dtype_bytes(dtype), size.get("causal", False)
    rows, width = size["batch"] * block, size["heads"] * size["d"]
    num_blocks = (cp - 1) / (2 if causal else 1)
    peers = num_blocks * rows * (3 * width * num_bytes + 8 * size["heads"])
    return Cost(
        link_bytes=peers + 3 * rows * width * num_bytes * min(2 * (dp - 1) / dp, 1 + 1 / dp),
        hbm_bytes=peers + rows * (8 * width * num_bytes + 4 * size["heads"]),
        flops=2.5 * attention_flops(size["batch"], block, block * cp, width, causal),
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    replicas = _replicas(inputs_of_all_ranks)
    *_, given, causal, _, _ = inputs_of_all_ranks[0]
    scale = _scale(inputs_of_all_ranks[0])
    no_delta = [[(*one[:4], torch.zeros_like(one[4]), *one[5:]) for one in replica] for replica in replicas]
    yield "delta left out", _averaged([_gradients(replica) for replica in no_delta])
    yield "scale left out of dk", [(dq, dk / scale, dv) for dq, dk, dv in expected]
    yield "scale left out of dq", [(dq / scale, dk, dv) for dq, dk, dv in expected]
    yield "dk and dv exchanged", [(dq, dv, dk) for dq, dk, dv in expected]
    if given is not None:
        default = [[(*one[:6], None, *one[7:]) for one in replica] for replica in replicas]
        yield "scale not used", _averaged([_gradients(replica) for replica in default])
    if causal:
        unmasked = [[(*one[:7], False, *one[8:]) for one in replica] for replica in replicas]
        yield "mask left out", _averaged([_gradients(replica) for replica in unmasked])
    turned = [[(*one[:5], _as_rows(one[5]), *one[6:]) for one in replica] for replica in replicas]
    yield "lse read as [B, S, h]", _averaged([_gradients(replica) for replica in turned])
    if len(replicas) > 1:
        own = [one for replica in replicas for one in _gradients(replica)]
        yield "own replica alone", own
        yield "sum over replicas", [tuple(len(replicas) * g for g in one) for one in expected]
        yield "dq of the own replica", [(own[rank][0], *expected[rank][1:]) for rank in range(world_size)]
    if len(replicas[0]) > 1:
        yield from _peer_misses(expected, replicas, causal)


def _peer_misses(
    expected: list[Any], replicas: list[list[tuple[Any, ...]]], causal: bool
) -> Iterator[tuple[str, list[Any]]]:
    ranks, cp = range(len(expected)), len(replicas[0])
    alone = _averaged([[_gradients([one])[0] for one in replica] for replica in replicas])
    yield "own block alone", alone
    kept = [(expected[rank][0], *alone[rank][1:]) for rank in ranks]
    yield "dk and dv lost where a block is passed on", kept
    yield "dq of the own keys alone", [(alone[rank][0], *expected[rank][1:]) for rank in ranks]
    off = [(expected[rank][0], *expected[rank // cp * cp + (rank + 1) % cp][1:]) for rank in ranks]
    yield "dk and dv one rank off home", off
    if len(replicas) > 1:
        yield "mean over all ranks", [tuple(g / cp for g in one) for one in expected]
    if causal:
        local = [_gradients(replica, local_mask=True) for replica in replicas]
        yield "mask in local positions", _averaged(local)
    local_lse = [[(*one[:5], _own_lse(one), *one[6:]) for one in replica] for replica in replicas]
    yield "lse of the own block", _averaged([_gradients(replica) for replica in local_lse])


def _gradients(replica: list[tuple[Any, ...]], local_mask: bool = False) -> list[tuple[torch.Tensor, ...]]:
    """dq, dk, dv of each block of a replica, from the whole sequence at once."""
    tensors = [torch.cat([one[i].double() for one in replica], dim=1).transpose(1, 2) for i in range(5)]
    dout, q, k, v, out = tensors
    lse = torch.cat([one[5].double() for one in replica], dim=2)[..., None]
    delta = torch.einsum("bhsd,bhsd->bhs", dout, out)[..., None]
    scale, causal = _scale(replica[0]), replica[0][7]
    positions = torch.arange(q.shape[2], device=q.device) % (replica[0][1].shape[1] if local_mask else q.shape[2])
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    num_rows = max(1, MAX_SCORES // (q.shape[0] * q.shape[1] * q.shape[2]))
    for first in range(0, q.shape[2], num_rows):
        rows = (slice(None), slice(None), slice(first, first + num_rows))
        exponent = scale * torch.einsum("bhid,bhjd->bhij", q[rows], k) - lse[rows]
        if causal:
            exponent.masked_fill_(positions > positions[rows[2], None], -torch.inf)
        weights = exponent.exp_()
        dv += torch.einsum("bhij,bhid->bhjd", weights, dout[rows])
        weights *= torch.einsum("bhid,bhjd->bhij", dout[rows], v) - delta[rows]
        dq[rows] = scale * torch.einsum("bhij,bhjd->bhid", weights, k)
        dk += scale * torch.einsum("bhij,bhid->bhjd", weights, q[rows])
    parts = [gradient.transpose(1, 2).chunk(len(replica), dim=1) for gradient in (dq, dk, dv)]
    return list(zip(*parts, strict=True))


def _averaged(of_replicas: list[list[tuple[torch.Tensor, ...]]]) -> list[tuple[torch.Tensor, ...]]:
    """The mean over replicas of every place, for all ranks."""
    places = [
        tuple(torch.stack(same).mean(dim=0) for same in zip(*place, strict=True))
        for place in zip(*of_replicas, strict=True)
    ]
    return places * len(of_replicas)


def _replicas(inputs_of_all_ranks: list[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
    cp_group = inputs_of_all_ranks[0][8]
    cp = len(inputs_of_all_ranks) if cp_group is None else len(cp_group.part_of(0))
    return [inputs_of_all_ranks[first : first + cp] for first in range(0, len(inputs_of_all_ranks), cp)]


def _scale(arguments: tuple[Any, ...]) -> float:
    return float(arguments[1].shape[-1] ** -0.5 if arguments[6] is None else arguments[6])


def _as_rows(lse: torch.Tensor) -> torch.Tensor:
    """The same memory taken for [B, S, h]."""
    return lse.reshape(lse.shape[0], lse.shape[2], lse.shape[1]).transpose(1, 2)


def _own_lse(arguments: tuple[Any, ...]) -> torch.Tensor:
    _, q, k, v, *_ = arguments
    positions = torch.arange(q.shape[1], device=q.device)
    return attend(q, k, v, _scale(arguments), positions if arguments[7] else None, positions)[1]


def _grid(size: Size, world_size: int) -> tuple[int, int]:
    dp = min(size["dp"], world_size)
    return dp, world_size // dp


def _block(size: Size, cp: int) -> int:
    return int(size["block"] if "block" in size else size["total"] // cp)
