"""Judge's side of embedding_lookup.

The catalogue counts a row as often as it is asked for. A solution may fetch it once, and 40 % of the indices ask for
five rows, so cost counts different rows, and no bytes of indices, which a kernel that reads peers does not send.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import exact
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# Rank r asks for `asked` + r `more_asked` rows; `gaps` leaves ranks, and pairs of asker and owner, without rows in some
# draws.
PROBLEM = Problem(
    number=10,
    group="recommendation",
    parallelism="row-sharded table",
    origin="TorchRec / DLRM row-wise sharded embedding; vocabulary-parallel embedding",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"rows": 29, "width": 13, "asked": 41, "more_asked": 6, "gaps": True},
        "base": {"rows": 1024, "width": 1024, "asked": 1024},
        "large": {"rows": 2**20, "width": 512, "asked": 2**18, "more_asked": 777},
    },
    check=exact(),
)

NUM_HOT_ROWS = 5
HOT_SHARE = 0.4


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    rows, world_size, index = size["rows"], draw.world_size, draw.index
    hot_owner = index % world_size
    hot_rows = hot_owner * rows + draw.shared_permutation(rows)[:NUM_HOT_ROWS]
    count = _num_asked(size, draw.rank)
    has_gaps = size.get("gaps", False)
    if has_gaps and index % 3 == 1 and draw.rank == (index + 1) % world_size:
        count = 0
    uniform = draw.integers(0, world_size * rows, count)
    hot = hot_rows[draw.integers(0, NUM_HOT_ROWS, count)]
    indices = torch.where(draw.uniform(0.0, 1.0, count) < HOT_SHARE, hot, uniform)
    if has_gaps and index % 2 == 0 and draw.rank == (index // 2) % world_size:
        # This rank asks nothing of one owner, in turn itself and others: those rows are taken from the next owner.
        spared = (draw.rank + index // 2) % world_size
        indices = torch.where(indices // rows == spared, (indices + rows) % (world_size * rows), indices)
    return indices, draw.normal(rows, size["width"])


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    table = torch.cat([shard for _, shard in inputs_of_all_ranks])
    return [table.index_select(0, indices) for indices, _ in inputs_of_all_ranks]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Expected numbers of different rows. The last rank asks for most and fetches what others own; the hot owner serves
    # most, where the fewest indices are its own: on rank 0. From memory a rank reads each of its rows that anybody
    # asks for once, and writes its result.
    row_bytes = size["width"] * dtype_bytes(dtype)
    asked = [_num_asked(size, rank) for rank in range(world_size)]
    share = (world_size - 1) / world_size
    fetched = share * _num_different(size, world_size, asked[-1]) + NUM_HOT_ROWS
    served = sum(_num_different(size, world_size, count) / world_size + NUM_HOT_ROWS for count in asked[1:])
    read = _num_different(size, world_size, sum(asked)) / world_size + NUM_HOT_ROWS
    return Cost(
        link_bytes=max(fetched, served) * row_bytes if world_size > 1 else 0,
        hbm_bytes=(read + asked[-1]) * row_bytes + 8 * asked[-1],
        flops=0.0,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    rows = inputs_of_all_ranks[0][1].shape[0]
    asked = [indices for indices, _ in inputs_of_all_ranks]
    own = [shard for _, shard in inputs_of_all_ranks]
    yield "rows in order of the table", [want[i.argsort(stable=True)] for want, i in zip(expected, asked, strict=True)]
    yield "last 5 elements of every row not moved", [_without_last_columns(want) for want in expected]
    if world_size == 1:
        return
    owners = [indices // rows for indices in asked]
    grouped = [want[o.argsort(stable=True)] for want, o in zip(expected, owners, strict=True)]
    yield "rows grouped by owner", grouped
    yield "rows of the own shard", [shard[i % rows] for i, shard in zip(asked, own, strict=True)]
    dealt = [torch.stack(own, dim=1).flatten(0, 1)[indices] for indices in asked]
    yield "table dealt out row by row", dealt
    turned = torch.cat(own[1:] + own[:1])
    yield "rows of the next owner", [turned[indices] for indices in asked]
    kept = [_has_room(o, world_size) for o in owners]
    yield "no room for a hot owner's rows", [w * k.unsqueeze(1) for w, k in zip(expected, kept, strict=True)]
    # A rank that asks for nothing returns early and serves nobody, in some draws.
    silent = [rank for rank in range(world_size) if len(asked[rank]) == 0]
    if silent:
        served = [(o != silent[0]).unsqueeze(1) for o in owners]
        yield "nothing from a rank that asks for nothing", [w * s for w, s in zip(expected, served, strict=True)]


def _without_last_columns(rows: torch.Tensor) -> torch.Tensor:
    result = rows.clone()
    result[:, -5:] = 0
    return result


def _has_room(owner: torch.Tensor, world_size: int) -> torch.Tensor:
    """Which of the indices fit where every owner has room for the same share of them."""
    room = -(-len(owner) // world_size)
    is_of = owner.unsqueeze(1) == torch.arange(world_size, device=owner.device)
    place = is_of.cumsum(dim=0)[is_of]
    return place <= room


def _num_different(size: Size, world_size: int, count: int) -> float:
    """Expected number of different rows among the uniform ones of `count` indices."""
    num_rows = world_size * size["rows"]
    return float(num_rows * (1 - (1 - 1 / num_rows) ** ((1 - HOT_SHARE) * count)))


def _num_asked(size: Size, rank: int) -> int:
    return int(size["asked"] + rank * size.get("more_asked", 0))
