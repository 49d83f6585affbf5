"""Judge's side of moe_post_all2all.

`tiny_wide` and `tiny_dropped` are not in the catalogue: several experts on each of 8 ranks; pairs that are selected but
not routed, one token without any pair, and one that names an expert in all slots. The baseline adds up in the working
dtype, as the catalogue says, so an accumulator in bf16 is no near miss. Costs take a choice of K different experts with
equal weights.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import relative
from pkb.problems._draw import Draw
from pkb.problems._moe import Pairs, choice_mask, routed_counts, shared_choices, splits, with_drops
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# Rank r has `rows` + `more` (r mod 3) tokens, and one more with each draw where it is `tiny`. `top_k` has one number
# for even draws and one for odd ones.
PROBLEM = Problem(
    number=29,
    group="moe",
    parallelism="ep",
    origin="VeOmni tokens_post_all2all",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"rows": 13, "more": 5, "hidden": 11, "num_experts": 8, "top_k": (2, 3), "tiny": True},
        "tiny_wide": {"rows": 17, "more": 3, "hidden": 6, "num_experts": 16, "top_k": (4, 3), "tiny": True},
        "tiny_dropped": {
            "rows": 19,
            "more": 3,
            "hidden": 7,
            "num_experts": 16,
            "top_k": (3, 4),
            "tiny": True,
            "dropped": True,
        },
        "base": {"rows": 1024, "more": 0, "hidden": 1024, "num_experts": 8, "top_k": (2, 2)},
        "large": {"rows": 8192, "more": 0, "hidden": 7168, "num_experts": 256, "top_k": (8, 8)},
    },
    check=relative(bf16=1e-2, fp32=1e-5, rows=2e-2),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    num_experts, index, is_tiny = size["num_experts"], draw.index, size.get("tiny", False)
    rows = [size["rows"] + size["more"] * (r % 3) + (index if is_tiny else 0) for r in range(draw.world_size)]
    selected = routed = shared_choices(draw, rows, num_experts, size["top_k"][index % 2])
    if size.get("dropped", False):
        routed = [with_drops(choice, draw) for choice in selected]
        selected = [torch.where(r >= 0, r, s) for r, s in zip(routed, selected, strict=True)]
    own = routed[draw.rank]
    told = splits(routed_counts(routed, num_experts), draw.rank)
    routing_map = choice_mask(own, num_experts, torch.float32).sum(dim=1)
    mapping = routing_map.nonzero()[:, 1]
    weights = draw.normal(*own.shape).float().softmax(dim=-1).to(draw.dtype)
    arguments = (
        draw.normal(sum(told.received), size["hidden"]),
        weights,
        selected[draw.rank],
        num_experts,
        told.sent,
        told.received,
        told.per_local_expert.cpu() if is_tiny else told.per_local_expert,
        routing_map if is_tiny and index % 2 == 1 else routing_map != 0,
        mapping,
        torch.Size((len(own), size["hidden"])),
    )
    if index % 3 == 0:
        return arguments
    return (*arguments, Group.whole(draw.world_size) if index % 3 == 1 else None)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    rows = [one[0] for one in inputs_of_all_ranks]
    return _combined(inputs_of_all_ranks, rows, _weights(inputs_of_all_ranks))


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # The weights live with the token, so every pair's row travels; rows and weights are read once.
    rows, top_k = size["rows"] + size["more"], size["top_k"][0]
    row_bytes = size["hidden"] * dtype_bytes(dtype)
    return Cost(
        link_bytes=rows * top_k * (world_size - 1) / world_size * row_bytes,
        hbm_bytes=rows * ((top_k + 1) * row_bytes + top_k * (dtype_bytes(dtype) + 8)),
        flops=2 * rows * top_k * size["hidden"],
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    rows, weights = [one[0] for one in inputs_of_all_ranks], _weights(inputs_of_all_ranks)
    pairs, source = _pairs(inputs_of_all_ranks)
    yield "rows not weighted", _combined(inputs_of_all_ranks, rows, torch.ones_like(weights))
    by_slot = [(*one[:2], one[2].sort(dim=-1).values, *one[3:]) for one in inputs_of_all_ranks]
    yield "weights by slot instead of by expert", _combined(inputs_of_all_ranks, rows, _weights(by_slot))
    last = weights * _is_last_of(pairs.token, pairs, weights)
    yield "last expert of a token instead of the sum", _combined(inputs_of_all_ranks, rows, last)
    per_rank = pairs.token * world_size + pairs.expert * world_size // pairs.num_experts
    overwritten = weights * _is_last_of(per_rank, pairs, weights)
    yield "one expert for each token and rank", _combined(inputs_of_all_ranks, rows, overwritten)
    halved = [*rows[:-1], torch.cat((rows[-1][: len(rows[-1]) // 2], rows[-1][len(rows[-1]) // 2 :].flip(0) * 2))]
    yield "last rank's rows overwritten before they were read", _combined(inputs_of_all_ranks, halved, weights)
    if world_size == 1:
        return
    orders = [source[place].argsort(stable=True) for place in pairs.places(world_size)]
    unsorted = [_placed(one, order) for one, order in zip(rows, orders, strict=True)]
    yield "rows not put in order of sources", _combined(inputs_of_all_ranks, unsorted, weights)
    transposed = []
    for arguments, order in zip(inputs_of_all_ranks, orders, strict=True):
        chunks = torch.split(arguments[0], arguments[6].flatten().tolist())
        sent = torch.cat([chunk for s in range(world_size) for chunk in chunks[s::world_size]])
        transposed.append(_placed(sent, order))
    yield "table read transposed", _combined(inputs_of_all_ranks, transposed, weights)
    owner = torch.arange(pairs.num_experts, device=weights.device) * world_size // pairs.num_experts
    first = torch.arange(len(weights), device=weights.device)
    home = (torch.cumsum(_num_tokens(inputs_of_all_ranks), 0) <= first.unsqueeze(1)).sum(dim=1, keepdim=True)
    yield "rows of the own experts alone", _combined(inputs_of_all_ranks, rows, weights * (owner == home))


def _pairs(inputs_of_all_ranks: list[tuple[Any, ...]]) -> tuple[Pairs, torch.Tensor]:
    """All pairs by (expert, token), tokens numbered through, and the rank that each token is on."""
    mapping = [one[8] for one in inputs_of_all_ranks]
    device, num_experts = mapping[0].device, inputs_of_all_ranks[0][3]
    # [W, E]: the tables of all ranks side by side.
    counts = torch.cat([one[6].to(device) for one in inputs_of_all_ranks], dim=1)
    expert = torch.arange(num_experts, device=device).expand_as(counts).flatten().repeat_interleave(counts.flatten())
    source = torch.arange(len(counts), device=device).repeat_interleave(counts.sum(dim=1))
    num_tokens = _num_tokens(inputs_of_all_ranks)
    token = torch.cat(mapping) + (num_tokens.cumsum(0) - num_tokens)[source]
    order = expert.argsort(stable=True)
    return Pairs(expert[order], token[order], num_experts), source[order]


def _num_tokens(inputs_of_all_ranks: list[tuple[Any, ...]]) -> torch.Tensor:
    """Tokens of each rank, [W]."""
    return torch.tensor([one[9][0] for one in inputs_of_all_ranks], device=inputs_of_all_ranks[0][0].device)


def _weights(inputs_of_all_ranks: list[tuple[Any, ...]]) -> torch.Tensor:
    """w [tokens of all ranks, E]."""
    weights = torch.cat([one[1].double() for one in inputs_of_all_ranks])
    selected = torch.cat([one[2] for one in inputs_of_all_ranks])
    dense = weights.new_zeros(len(weights), inputs_of_all_ranks[0][3])
    for k in range(weights.shape[1]):
        dense[torch.arange(len(dense), device=dense.device), selected[:, k]] += weights[:, k]
    return dense


def _combined(
    inputs_of_all_ranks: list[tuple[Any, ...]], rows: list[torch.Tensor], weights: torch.Tensor
) -> list[torch.Tensor]:
    """Weighted sums of rows that lie as expert_outputs do."""
    pairs, _ = _pairs(inputs_of_all_ranks)
    total = weights.new_zeros(len(weights), rows[0].shape[1])
    for place, own in zip(pairs.places(len(rows)), rows, strict=True):
        token = pairs.token[place]
        total.index_add_(0, token, weights[token, pairs.expert[place]].unsqueeze(1) * own.double())
    return list(torch.split(total, _num_tokens(inputs_of_all_ranks).tolist()))


def _is_last_of(key: torch.Tensor, pairs: Pairs, weights: torch.Tensor) -> torch.Tensor:
    """Like weights, true for pairs after which no other has the same key."""
    place = torch.arange(len(key), device=key.device)
    last = torch.zeros(int(key.max()) + 1, dtype=torch.int64, device=key.device)
    last.scatter_reduce_(0, key, place, reduce="amax")
    found = torch.zeros_like(weights, dtype=torch.bool)
    found[pairs.token, pairs.expert] = last[key] == place
    return found


def _placed(sent: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Rows as they would have lain for `sent` to be what reordering by source gives."""
    return torch.empty_like(sent).index_copy_(0, order, sent)
