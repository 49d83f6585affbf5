"""Judge's side of moe_pre_all2all.

`tiny_3d` and `tiny_dropped` are not in the catalogue: hidden states of three dimensions; cleared slots, and tokens that
name an expert twice (routing_map 2, one row). Costs take a choice of K different experts with equal weights and a row
sent once for each rank that hosts one of a token's experts.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import exact
from pkb.problems._draw import Draw
from pkb.problems._moe import (
    choice_mask,
    mean_ranks_of_token,
    pairs_of,
    routed_counts,
    shared_choices,
    splits,
    with_drops,
)
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# Rank r has `rows` + `more` (r mod 3) tokens, and one more with each draw where it is `tiny`; `lead` tokens side by
# side make a third dimension. `top_k` has one number for even draws and one for odd ones.
PROBLEM = Problem(
    number=28,
    group="moe",
    parallelism="ep",
    origin="VeOmni token_pre_all2all (Megatron-LM permute, all-to-all, sort chunks)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"rows": 13, "more": 5, "hidden": 11, "num_experts": 8, "top_k": (2, 3), "tiny": True},
        "tiny_3d": {"rows": 5, "more": 2, "lead": 2, "hidden": 11, "num_experts": 16, "top_k": (2, 2), "tiny": True},
        "tiny_dropped": {
            "rows": 19,
            "more": 3,
            "hidden": 6,
            "num_experts": 16,
            "top_k": (3, 4),
            "tiny": True,
            "dropped": True,
        },
        "base": {"rows": 1024, "more": 0, "hidden": 1024, "num_experts": 8, "top_k": (2, 2)},
        "large": {"rows": 8192, "more": 0, "hidden": 7168, "num_experts": 256, "top_k": (8, 8)},
    },
    check=exact(),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    num_experts, top_k, index = size["num_experts"], size["top_k"][draw.index % 2], draw.index
    choices = shared_choices(draw, _rows(size, draw), num_experts, top_k)
    if size.get("dropped", False):
        choices = [with_drops(choice, draw) for choice in choices]
    choice = choices[draw.rank]
    told = splits(routed_counts(choices, num_experts), draw.rank)
    is_integer = size.get("tiny", False) and index % 2 == 1
    mask = choice_mask(choice, num_experts, torch.int64 if is_integer else torch.float32)
    hidden = draw.normal(len(choice), size["hidden"])
    if "lead" in size:
        hidden = hidden.view(size["lead"], -1, size["hidden"])
    table = told.per_local_expert.cpu() if size.get("tiny", False) else told.per_local_expert
    arguments = (hidden, mask, num_experts, told.sent, told.received, table)
    if index % 3 == 0:
        return arguments
    return (*arguments, Group.whole(draw.world_size) if index % 3 == 1 else None)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Any]:
    # The rows of all ranks one after the other are the pairs by (expert, token): one index is the whole dispatch.
    pairs = pairs_of(_maps(inputs_of_all_ranks))
    return _answers(inputs_of_all_ranks, [pairs.token[place] for place in pairs.places(world_size)])


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Hidden states are read once, rows written once for each expert; mask, map and mapping pass once.
    rows = (size["rows"] + size["more"]) * size.get("lead", 1)
    num_experts, top_k, row_bytes = size["num_experts"], size["top_k"][0], size["hidden"] * dtype_bytes(dtype)
    ranks = mean_ranks_of_token(num_experts, top_k, world_size)
    return Cost(
        link_bytes=rows * ranks * (world_size - 1) / world_size * row_bytes,
        hbm_bytes=rows * ((1 + top_k) * row_bytes + 4 * num_experts * (top_k + 1) + 8 * top_k),
        flops=0.0,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size, num_experts = len(expected), inputs_of_all_ranks[0][2]
    ranks = range(world_size)
    pairs = pairs_of(_maps(inputs_of_all_ranks))

    def in_order_of(keys: list[torch.Tensor]) -> list[Any]:
        """Answers with the rows of every rank in order of the rank's key."""
        places = zip(keys, pairs.places(world_size), strict=True)
        return _answers(inputs_of_all_ranks, [pairs.token[at][key[at].argsort(stable=True)] for key, at in places])

    masks = torch.cat([one[1] for one in inputs_of_all_ranks], dim=2)
    slot = masks[pairs.expert, :, pairs.token].argmax(dim=-1)
    yield "slots of an expert one after the other", in_order_of([pairs.expert * masks.shape[1] + slot] * world_size)
    yield "rows of a rank by token", in_order_of([pairs.token] * world_size)
    yield "map as flags", [(rows, m != 0, *rest) for rows, m, *rest in expected]
    yield "map as int32", [(rows, m.int(), *rest) for rows, m, *rest in expected]
    yield "map laid out by token", [(rows, m.t().reshape(m.shape), *rest) for rows, m, *rest in expected]
    yield "mapping by token", [(rows, m, mapping.sort().values, shape) for rows, m, mapping, shape in expected]
    if world_size == 1:
        return
    source = _source(inputs_of_all_ranks)[pairs.token]
    yield "by source, then by expert", in_order_of([source * num_experts + pairs.expert] * world_size)
    yield "sources by descending rank", in_order_of([pairs.expert * world_size - source] * world_size)
    turned = [pairs.expert * world_size + (source - r) % world_size for r in ranks]
    yield "sources in order of arrival", in_order_of(turned)
    arrived = in_order_of([source * num_experts + pairs.expert] * world_size)
    shifted = [_regrouped(one[0], arguments[5]) for one, arguments in zip(arrived, inputs_of_all_ranks, strict=True)]
    yield "empty chunks shift the others", [(rows, *one[1:]) for rows, one in zip(shifted, expected, strict=True)]
    capacity = -(-len(pairs.token) // world_size)
    yield "rows beyond the mean dropped", [(_zeros_from(rows, capacity), *rest) for rows, *rest in expected]


def _answers(inputs_of_all_ranks: list[tuple[Any, ...]], tokens: list[torch.Tensor]) -> list[Any]:
    """Outputs where the rows of each rank are those of the given tokens."""
    hidden = [one[0].flatten(0, -2) for one in inputs_of_all_ranks]
    everything = torch.cat(hidden)
    found = []
    for own, m, token in zip(hidden, _maps(inputs_of_all_ranks), tokens, strict=True):
        found.append((everything[token], m, (m != 0).nonzero()[:, 1], torch.Size(own.shape)))
    return found


def _maps(inputs_of_all_ranks: list[tuple[Any, ...]]) -> list[torch.Tensor]:
    return [torch.einsum("ekt->et", one[1]) for one in inputs_of_all_ranks]


def _source(inputs_of_all_ranks: list[tuple[Any, ...]]) -> torch.Tensor:
    """The rank of every token, tokens numbered through."""
    mask = inputs_of_all_ranks[0][1]
    rows = torch.tensor([one[1].shape[2] for one in inputs_of_all_ranks], device=mask.device)
    return torch.arange(len(rows), device=mask.device).repeat_interleave(rows)


def _regrouped(arrived: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Chunks by local expert, where empty ones were not counted."""
    lengths = sorted(table.flatten().tolist(), key=lambda length: length == 0)
    chunks, num_local = torch.split(arrived, lengths), table.shape[1]
    return torch.cat([chunk for j in range(num_local) for chunk in chunks[j::num_local]])


def _zeros_from(rows: torch.Tensor, first: int) -> torch.Tensor:
    return torch.cat((rows[:first], torch.zeros_like(rows[first:])))


def _rows(size: Size, draw: Draw) -> list[int]:
    """Tokens of every rank."""
    more = draw.index if size.get("tiny", False) else 0
    return [(size["rows"] + size["more"] * (r % 3) + more) * size.get("lead", 1) for r in range(draw.world_size)]
