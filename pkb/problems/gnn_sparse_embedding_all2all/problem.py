"""Judge's side of gnn_sparse_embedding_all2all.

At every size 30 to 60 % of the rows go to one owner, which changes with the draw; costs count the mean, 45 %, for that
owner, the busiest rank. `tiny_few` is not in the catalogue: so few rows that some ranks get none (m = 0).
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from pkb.problems._check import exact
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# Rank r sends `rows` + r * `more` rows of shape `row`. With `whole_shares` the table is rounded up to a multiple of W.
PROBLEM = Problem(
    number=67,
    group="graph",
    parallelism="ep-like sharded embedding table",
    origin="DGL multi-GPU sparse embeddings (NodeEmbedding optimizers)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"rows": 29, "more": 7, "row": (5,), "num_nodes": 1009, "may_be_empty": True},
        "tiny_few": {"rows": 3, "more": 0, "row": (2, 3), "num_nodes": 211, "may_be_empty": True},
        "base": {"rows": 1024, "more": 0, "row": (128,), "num_nodes": 100000, "whole_shares": True},
        "large": {"rows": 2**20, "more": 1000, "row": (128,), "num_nodes": 111059956},
    },
    check=exact(),
)

SHARES = (0.3, 0.4, 0.5, 0.6)
"""Of the rows that are forced to one owner, with the draw."""


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    world_size, rank, index = draw.world_size, draw.rank, draw.index
    num_nodes = _num_nodes(size, world_size)
    num_rows = size["rows"] + rank * size["more"]
    if size.get("may_be_empty", False) and world_size > 1 and index % 3 == 2 and rank == world_size - 1:
        num_rows = 0
    # Ids that several rows of several ranks name.
    popular = draw.shared_integers(0, num_nodes, max(2, size["rows"] // 8))
    idx = draw.integers(0, num_nodes, num_rows)
    again = popular[draw.integers(0, len(popular), num_rows)]
    idx = torch.where(draw.uniform(0.0, 1.0, num_rows) < 0.3, again, idx)
    hot = index % world_size
    forced = draw.uniform(0.0, 1.0, num_rows) < SHARES[index % len(SHARES)]
    if index % 4 > 0 and rank == (index // 2 + 1) % world_size:
        # In most draws this rank has nothing for the owner after the hot one.
        forced |= idx % world_size == (hot + 1) % world_size
    idx = torch.where(forced, _of_owner(idx, hot, num_nodes, world_size), idx)
    value = draw.normal(num_rows, *size["row"])
    if index % 3 == 0:
        return idx, value, num_nodes
    return idx, value, num_nodes, Group.whole(world_size) if index % 3 == 1 else None


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    idx, value = _joined(inputs_of_all_ranks)
    # Masks keep the order of sources and the order within them.
    return [(idx[idx % world_size == d], value[idx % world_size == d]) for d in range(world_size)]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Of each rank's rows a share goes to the hot owner, and the rest to all owners alike; the hot owner receives
    # most. Every rank's mean number of rows stands for its own; each row is read once and written once, with its id.
    rows = size["rows"] + size["more"] * (world_size - 1) / 2
    share = sum(SHARES) / len(SHARES)
    to_hot = rows * (share + (1 - share) / world_size)
    row_bytes = 8 + prod(size["row"]) * dtype_bytes(dtype)
    received = (world_size - 1) * to_hot
    sent = rows * (1 - (1 - share) / world_size) if world_size > 1 else 0.0
    return Cost(
        link_bytes=max(received, sent) * row_bytes,
        hbm_bytes=(rows + world_size * to_hot) * row_bytes,
        flops=0.0,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    ranks = range(world_size)
    idx, value = _joined(inputs_of_all_ranks)
    by_id = [torch.sort(got, stable=True) for got, _ in expected]
    yield "sorted by id", [(i, v[order]) for (i, order), (_, v) in zip(by_id, expected, strict=True)]
    yield "ids without their values", [(i, v.flip(0)) for i, v in expected]
    yield "only the last of equal ids kept", [_last_of_equal(i, v) for i, v in expected]
    yield "equal ids added up", [_summed(i, v) for i, v in expected]
    backwards = [(i.flip(0), v.flip(0)) for i, v, *_ in inputs_of_all_ranks]
    yield "order within a source reversed", oracle(backwards, world_size)
    if world_size == 1:
        return
    yield "local ids", [(i // world_size, v) for i, v in expected]
    yield "sources by descending rank", oracle(inputs_of_all_ranks[::-1], world_size)
    turned = [oracle(inputs_of_all_ranks[d:] + inputs_of_all_ranks[:d], world_size)[d] for d in ranks]
    yield "sources in order of arrival", turned
    yield "hot owner's rows cut to the mean", [_cut(one, len(idx) // world_size) for one in expected]
    unsorted = [(i, v[torch.argsort(torch.argsort(i % world_size, stable=True))]) for i, v, *_ in inputs_of_all_ranks]
    yield "values sent in their own order", oracle(unsorted, world_size)
    share = -(-inputs_of_all_ranks[0][2] // world_size)
    yield "owner by range of ids", [(idx[idx // share == d], value[idx // share == d]) for d in ranks]


def _joined(inputs_of_all_ranks: list[tuple[Any, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        torch.cat([idx for idx, *_ in inputs_of_all_ranks]),
        torch.cat([value for _, value, *_ in inputs_of_all_ranks]),
    )


def _num_nodes(size: Size, world_size: int) -> int:
    num_nodes = int(size["num_nodes"])
    return -(-num_nodes // world_size) * world_size if size.get("whole_shares", False) else num_nodes


def _of_owner(idx: torch.Tensor, owner: int, num_nodes: int, world_size: int) -> torch.Tensor:
    """An id of the given owner near each id."""
    moved = idx // world_size * world_size + owner
    return torch.where(moved < num_nodes, moved, moved - world_size)


def _distinct(idx: torch.Tensor) -> torch.Tensor:
    ordered = idx.sort().values
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]


def _last_of_equal(idx: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = _distinct(idx)
    inverse = torch.searchsorted(found, idx)
    last = torch.zeros_like(found).scatter_reduce_(
        0, inverse, torch.arange(len(idx), device=idx.device), reduce="amax", include_self=False
    )
    last = last.sort().values
    return idx[last], value[last]


def _summed(idx: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = _distinct(idx)
    inverse = torch.searchsorted(found, idx)
    return found, value.new_zeros((len(found), *value.shape[1:])).index_add_(0, inverse, value)


def _cut(pairs: tuple[torch.Tensor, torch.Tensor], num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return pairs[0][:num_rows], pairs[1][:num_rows]
