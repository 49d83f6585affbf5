"""Judge's side of gnn_sparse_feature_fetch_projection.

The catalogue's tables (111,000,000 rows at base, 16 GiB a rank at large) are too large for a judge that holds those of
all ranks at once. Base has 1,000,000 rows, large 2^22 a rank: there a shard still has 2 GiB in bf16, so that offsets in
bytes overflow int32. Large has one row less than all ranks could hold: the last shard is short there too. In all sizes
ranks have projections of their own. A row that is asked for several times may be fetched and projected once, and half
of the ids ask for a few hot rows, so cost counts different rows.
"""

from collections.abc import Iterator
from math import exp
from typing import Any

import torch

from pkb.problems._check import relative
from pkb.problems._draw import Draw, zipf_weights
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# The table has `rows` rows (rounded up to a multiple of W) or `rows_per_rank` a rank, all but one of them used.
# Rank r asks for `asked` + r * `more` rows.
PROBLEM = Problem(
    number=68,
    group="graph",
    parallelism="row-sharded table",
    origin="DGL / WholeGraph feature fetch on a papers100M-sized graph, fused with the first linear layer",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"rows_per_rank": 8, "width": 12, "out": 7, "asked": 23, "more": 5, "may_be_empty": True},
        "base": {"rows": 1000000, "width": 256, "out": 256, "asked": 20000, "more": 0},
        "large": {"rows_per_rank": 2**22, "width": 256, "out": 256, "asked": 2**19, "more": 777},
    },
    check=relative(bf16=1e-2, fp32=2e-3, rows=5e-2),
)

NUM_HOT_ROWS = 3
HOT_SHARE = 0.5
BLOCK_ROWS = 2**20


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    world_size, rank, index = draw.world_size, draw.rank, draw.index
    num_nodes = _num_nodes(size, world_size)
    shard_rows = -(-num_nodes // world_size)
    hot_first = index % world_size * shard_rows
    hot_rows = hot_first + draw.shared_permutation(min(shard_rows, num_nodes - hot_first))[:NUM_HOT_ROWS]
    count = size["asked"] + rank * size["more"]
    if size.get("may_be_empty", False) and world_size > 1 and index % 3 == 1 and rank == index // 3 % world_size:
        count = 0
    ends = zipf_weights(NUM_HOT_ROWS, draw.device).cumsum(0)[:-1]
    hot = hot_rows[torch.bucketize(draw.uniform(0.0, 1.0, count), ends, right=True)]
    is_hot = draw.uniform(0.0, 1.0, count) < HOT_SHARE
    ids = torch.where(is_hot, hot, draw.integers(0, num_nodes, count))
    projection = draw.normal(size["width"], size["out"], scale=size["width"] ** -0.5)
    shard = _shard(draw, min(shard_rows, num_nodes - rank * shard_rows), size["width"])
    if index % 3 == 0:
        return shard, ids, projection, num_nodes
    return shard, ids, projection, num_nodes, Group.whole(world_size) if index % 3 == 1 else None


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    shards = [one[0] for one in inputs_of_all_ranks]
    return [_rows(shards, one[1]) @ one[2].double() for one in inputs_of_all_ranks]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Expected numbers of different rows. The last rank asks for most and fetches what others own; the hot owner serves
    # most. Peers read the table without ids being sent. From memory come the different rows that a rank asks for, its
    # ids and its projection; the result is written.
    num_bytes, width, out = dtype_bytes(dtype), size["width"], size["out"]
    asked = [size["asked"] + rank * size["more"] for rank in range(world_size)]
    spread = [_num_spread(size, world_size, count) for count in asked]
    share = (world_size - 1) / world_size
    fetched = share * spread[-1] + NUM_HOT_ROWS
    served = sum(spread[1:]) / world_size + (world_size - 1) * NUM_HOT_ROWS
    different = spread[-1] + NUM_HOT_ROWS
    return Cost(
        link_bytes=max(fetched, served) * width * num_bytes if world_size > 1 else 0.0,
        hbm_bytes=(different * width + width * out + asked[-1] * out) * num_bytes + 8 * asked[-1],
        flops=2 * different * width * out,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    ranks = range(world_size)
    num_nodes = inputs_of_all_ranks[0][3]
    shard_rows = -(-num_nodes // world_size)
    shards, ids, projections, *_ = zip(*inputs_of_all_ranks, strict=False)
    table = torch.cat([shard.double() for shard in shards])

    def answers(places: list[torch.Tensor]) -> list[torch.Tensor]:
        return [table[place] @ p.double() for place, p in zip(places, projections, strict=True)]

    yield "next row", answers([(i + 1) % num_nodes for i in ids])
    yield "ids sorted", answers([i.sort().values for i in ids])
    yield (
        "only the first of equal ids",
        [torch.where(_is_first(i)[:, None], one, 0) for i, one in zip(ids, expected, strict=True)],
    )
    yield "one row taken for zeros", [torch.cat([one[:-1], torch.zeros_like(one[-1:])]) for one in expected]
    if world_size == 1:
        return
    owners = [i // shard_rows for i in ids]
    orders = [o.argsort(stable=True) for o in owners]
    yield "rows left in the order of owners", answers([i[order] for i, order in zip(ids, orders, strict=True)])
    yield (
        "permutation in place of its inverse",
        answers([i[order][order] for i, order in zip(ids, orders, strict=True)]),
    )
    each = torch.stack([p.double() for p in projections])
    yield (
        "projection of the owner",
        [torch.einsum("qd,qdo->qo", table[i], each[owner]) for i, owner in zip(ids, owners, strict=True)],
    )
    yield "projection of rank 0 for all", [table[i] @ each[0] for i in ids]
    yield (
        "owner by remainder",
        answers([(i % world_size * shard_rows + i // world_size).clamp_max(num_nodes - 1) for i in ids]),
    )
    yield (
        "peers' rows taken for zeros",
        [torch.where((owners[r] == r)[:, None], one, 0) for r, one in zip(ranks, expected, strict=True)],
    )
    floor = num_nodes // world_size
    cut = [(i // floor).clamp_max(world_size - 1) for i in ids]
    yield (
        "shards of floor(num_total_nodes / W) rows",
        answers([(o * shard_rows + i - o * floor).clamp_max(num_nodes - 1) for i, o in zip(ids, cut, strict=True)]),
    )


def _num_nodes(size: Size, world_size: int) -> int:
    if "rows" in size:
        return -(-int(size["rows"]) // world_size) * world_size
    num_nodes = int(size["rows_per_rank"] * world_size)
    return num_nodes if world_size == 1 else num_nodes - 1


def _num_spread(size: Size, world_size: int, count: int) -> float:
    """How many different rows so many ids name that are not forced to hot rows."""
    num_nodes = _num_nodes(size, world_size)
    return num_nodes * (1 - exp(-(1 - HOT_SHARE) * count / num_nodes))


def _shard(draw: Draw, num_rows: int, width: int) -> torch.Tensor:
    """N(0, 1) in blocks: float32 values of a whole shard would take as much memory again, or twice as much."""
    shard = torch.empty((num_rows, width), dtype=draw.dtype, device=draw.device)
    for first in range(0, num_rows, BLOCK_ROWS):
        block = shard[first : first + BLOCK_ROWS]
        block.copy_(draw.normal(*block.shape))
    return shard


def _rows(shards: list[torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    """Rows of the table in float64, found by where the shards begin: they are never joined."""
    rows = torch.zeros((len(ids), shards[0].shape[1]), dtype=torch.float64, device=ids.device)
    first = 0
    for shard in shards:
        is_here = (first <= ids) & (ids < first + len(shard))
        rows[is_here] = shard[ids[is_here] - first].double()
        first += len(shard)
    return rows


def _is_first(ids: torch.Tensor) -> torch.Tensor:
    ordered, order = ids.sort(stable=True)
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return torch.zeros_like(is_first).scatter(0, order, is_first)
