"""Judge's side of dinov2_distributed_knn.

Labels are unique over all ranks at every size, so that a label tells its column. Queries lie near columns of another
rank; with the draw these are all of one cluster (so that all k neighbors are on one rank), single columns, or columns
of which every rank has one identical. Sims in fp32 are judged at 2e-3, which allows TF32 tensor cores.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from pkb.problems._check import Expected, accepts, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# Rank r has `columns` + r `more_columns` train columns, or a W-th of `columns_of_all`, and `queries` queries, with
# `ragged` one more on odd ranks.
PROBLEM = Problem(
    number=79,
    group="retrieval",
    parallelism="dp (sharded train set)",
    origin="DINOv2 distributed k-NN evaluation",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"dim": 16, "k": 7, "columns": 9, "more_columns": 2, "queries": 5, "ragged": True},
        "tiny_many": {"dim": 32, "k": 3, "columns": 53, "more_columns": 5, "queries": 7, "ragged": True},
        "base": {"dim": 384, "k": 200, "columns_of_all": 16384, "queries": 32},
        "large": {"dim": 1024, "k": 200, "columns": 131072, "queries": 1024},
    },
    check=relative(bf16=1e-2, fp32=2e-3, rows=2e-2),
)

CLUSTERS, SINGLE, REPEATED = range(3)
MOST_ANCHORS = 256
"""Columns of a rank that its peers know: queries are near these."""

FP32_TOLERANCE = 1e-3
"""Of similarities by which labels are judged; enough for TF32."""

BLOCK_ELEMS = 2**27
"""Similarities in float64 that are held at a time."""


class Table(NamedTuple):
    """Train columns of all ranks, and how to find them by label."""

    features: list[torch.Tensor]
    """By rank, [D, N] in the working dtype."""
    labels: torch.Tensor
    """Of all columns, in rank order."""


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    world_size, rank, k, dim = draw.world_size, draw.rank, size["k"], size["dim"]
    mode = draw.index % 3
    num_columns = [_num_columns(size, r, world_size) for r in range(world_size)]
    # In a cluster k columns are near one anchor.
    num_near = k if mode == CLUSTERS else 1
    num_anchors = min(MOST_ANCHORS, min(num_columns) // num_near)
    anchors = draw.shared_normal(world_size, num_anchors, dim).float()
    first = sum(num_columns[:rank])
    labels = draw.shared_permutation(sum(num_columns))[first : first + num_columns[rank]]
    train = F.normalize(draw.normal(num_columns[rank], dim).float(), dim=1)
    near = F.normalize(anchors[rank], dim=1).repeat(num_near, 1)
    train[: len(near)] = near + 0.3 * draw.uniform(0.0, 1.0, len(near), 1) * train[: len(near)]
    if mode == REPEATED:
        train[0] = anchors[0, 0]
    train = train[draw.permutation(len(train))]
    num_queries = size["queries"] + (rank % 2 if size.get("ragged", False) else 0)
    target = (rank + 1 + draw.integers(0, max(1, world_size - 1), num_queries)) % world_size
    if mode == REPEATED:
        target[0] = 0
    which = draw.integers(0, num_anchors, num_queries)
    which[0] = 0
    queries = F.normalize(anchors[target, which], dim=1) + draw.normal(num_queries, dim).float() * (0.3 / dim**0.5)
    arguments = (
        F.normalize(queries, dim=1).to(draw.dtype),
        F.normalize(train, dim=1).mT.contiguous().to(draw.dtype),
        labels.unsqueeze(0),
        k,
    )
    if draw.index % 4 == 0:
        return arguments
    return (*arguments, Group.whole(world_size) if draw.index % 2 == 1 else None)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[tuple[torch.Tensor, Expected]]:
    table = Table([one[1] for one in inputs_of_all_ranks], torch.cat([one[2].flatten() for one in inputs_of_all_ranks]))
    return [_nearest(queries, table, k) for queries, _, _, k, *_ in inputs_of_all_ranks]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Queries of all peers and their candidates for the own queries arrive. Own columns are read once, with all queries;
    # the result is written.
    num_columns, element = _num_columns(size, world_size - 1, world_size), dtype_bytes(dtype)
    queries, dim, k = size["queries"], size["dim"], size["k"]
    peers = world_size - 1
    return Cost(
        link_bytes=peers * queries * (dim * element + k * (element + 8)),
        hbm_bytes=(num_columns + world_size * queries) * dim * element + queries * k * (element + 8),
        flops=2 * dim * num_columns * world_size * queries,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    ranks = range(world_size)
    k = inputs_of_all_ranks[0][3]
    sims, labels = [one[0] for one in expected], [one[1].value for one in expected]
    yield "labels of the next neighbor", list(zip(sims, [one.roll(1, dims=1) for one in labels], strict=True))
    yield "ascending", [(s.flip(1), y.flip(1)) for s, y in zip(sims, labels, strict=True)]
    yield (
        "nearest for all places",
        [(s[:, :1].expand_as(s), y[:, :1].expand_as(y)) for s, y in zip(sims, labels, strict=True)],
    )
    yield "labels of the next query", [(s, y.roll(1, dims=0)) for s, y in zip(sims, labels, strict=True)]
    every = torch.cat([one[2].flatten() for one in inputs_of_all_ranks])
    places = [(every == y.unsqueeze(-1)).double().argmax(dim=-1) for y in labels]
    yield "numbers of columns in place of labels", list(zip(sims, places, strict=True))
    whole = [_similarities(one[0], inputs_of_all_ranks) for one in inputs_of_all_ranks]
    farther = [_picked(s, s.topk(k + 1, dim=1).indices[:, 1:], every) for s in whole]
    yield "nearest left out", farther
    if inputs_of_all_ranks[0][0].dtype == torch.float32:
        keys = [s.bfloat16().float().sort(dim=1, descending=True, stable=True).indices[:, :k] for s in whole]
        by_keys = [_picked(s, order, every) for s, order in zip(whole, keys, strict=True)]
        # Often no neighbors are so near to each other that it shows.
        if any(float((got - s).abs().max()) > 1.5 * FP32_TOLERANCE for (got, _), s in zip(by_keys, sims, strict=True)):
            yield "sorted by keys in bf16", by_keys
    if world_size == 1:
        return
    ends = torch.tensor([one[1].shape[1] for one in inputs_of_all_ranks]).cumsum(0)[:-1]
    split = [s.tensor_split(ends, dim=1) for s in whole]
    owned = [one[2].flatten() for one in inputs_of_all_ranks]
    yield "own columns alone", [_picked(split[r][r], split[r][r].topk(k, dim=1).indices, owned[r]) for r in ranks]
    others = [[s if r != 0 else torch.full_like(s, -2.0) for r, s in enumerate(parts)] for parts in split]
    without = [torch.cat(parts, dim=1) for parts in others]
    yield "rank 0's columns left out", [_picked(s, s.topk(k, dim=1).indices, every) for s in without]
    few = [torch.cat([_best_only(s, -(-k // world_size)) for s in parts], dim=1) for parts in split]
    yield "k / W candidates of each rank", [_picked(s, s.topk(k, dim=1).indices, every) for s in few]
    turned = torch.cat(owned[1:] + owned[:1])
    yield "labels of the next rank", [_picked(s, s.topk(k, dim=1).indices, turned) for s in whole]


def _nearest(queries: torch.Tensor, table: Table, k: int) -> tuple[torch.Tensor, Expected]:
    found, rows = [], max(1, BLOCK_ELEMS // len(table.labels))
    for block in torch.split(queries, rows):
        products = [block.double() @ features.double() for features in table.features]
        found.append(torch.cat(products, dim=1).topk(k, dim=1))
    sims = torch.cat([values for values, _ in found])
    labels = table.labels[torch.cat([places for _, places in found])]
    return sims, Expected(labels, check=accepts(_wrong_labels(queries, table, sims, labels)))


def _wrong_labels(
    queries: torch.Tensor, table: Table, sims: torch.Tensor, labels: torch.Tensor
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Marks labels of no column, of a column too near or too far for its place, or given twice, and incomplete rows."""
    tolerance = 2.0**-7 * float(sims.abs().max()) if queries.dtype == torch.bfloat16 else FP32_TOLERANCE
    ordered, order = table.labels.sort()

    def wrong(got: torch.Tensor) -> torch.Tensor:
        got = got.contiguous()
        place = torch.searchsorted(ordered, got).clamp_max(len(ordered) - 1)
        unknown = ordered[place] != got
        off = (_sims_of(queries, table.features, order[place]) - sims).abs() > tolerance
        in_order, origin = got.sort(dim=1)
        repeats = F.pad(in_order[:, 1:] == in_order[:, :-1], (1, 0))
        repeated = torch.zeros_like(repeats).scatter(1, origin, repeats)
        needed = sims > sims[:, -1:] + tolerance
        at = torch.searchsorted(in_order, labels).clamp_max(in_order.shape[1] - 1)
        missing = (needed & (in_order.gather(1, at) != labels)).any(dim=1, keepdim=True)
        return unknown | off | repeated | missing

    return wrong


def _sims_of(queries: torch.Tensor, features: list[torch.Tensor], columns: torch.Tensor) -> torch.Tensor:
    """Dot products of each query with the columns named in its row, counted over all ranks; float64."""
    sims = torch.zeros(columns.shape, dtype=torch.float64, device=queries.device)
    rows = max(1, BLOCK_ELEMS // (columns.shape[1] * queries.shape[1]))
    first = 0
    for part in features:
        is_here = (columns >= first) & (columns < first + part.shape[1])
        place = (columns - first).clamp(0, part.shape[1] - 1)
        for begin in range(0, len(queries), rows):
            block = slice(begin, begin + rows)
            picked = part.mT[place[block]].double()
            products = torch.einsum("qkd,qd->qk", picked, queries[block].double())
            sims[block] = torch.where(is_here[block], products, sims[block])
        first += part.shape[1]
    return sims


def _similarities(queries: torch.Tensor, inputs_of_all_ranks: list[tuple[Any, ...]]) -> torch.Tensor:
    return torch.cat([queries.double() @ one[1].double() for one in inputs_of_all_ranks], dim=1)


def _picked(sims: torch.Tensor, places: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return sims.gather(1, places), labels[places]


def _best_only(sims: torch.Tensor, count: int) -> torch.Tensor:
    """All but the largest `count` of each row put out of reach."""
    bound = sims.topk(count, dim=1).values[:, -1:]
    return sims.masked_fill(sims < bound, -2.0)


def _num_columns(size: Size, rank: int, world_size: int) -> int:
    if "columns_of_all" in size:
        return int(size["columns_of_all"] // world_size)
    return int(size["columns"] + rank * size.get("more_columns", 0))
