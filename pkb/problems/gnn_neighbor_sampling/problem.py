"""Judge's side of gnn_neighbor_sampling.

Fanouts are the same on all ranks. Costs are those of a mean draw: hops take the mean number of neighbors of a node,
and find new nodes as if neighbors were uniform. As edges follow from the place where a row begins, a rank needs no
more of a peer than two row pointers a frontier node and one id a neighbor: less than the catalogue counts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import exp
from typing import Any

import torch

from pkb.problems._check import exact
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size

# Fanouts and (in tiny sizes) the number of seeds change with the draw. Degrees are 0 to 8 with one node of 30
# (`hubs`: so many nodes draw 30 % of the neighbors), all of one `degree`, or of a power law with a `least` degree.
PROBLEM = Problem(
    number=64,
    group="graph",
    parallelism="node partition",
    origin="PyTorch Geometric's distributed neighbor sampler",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"nodes_per_rank": 61, "nodes": 8, "hubs": 12, "seeds": 9, "fanouts": ((4, 3), (3, -1, 2), (5,))},
        "base": {"nodes": 10000, "degree": 16, "seeds": 512, "fanouts": ((10, 5),)},
        "large": {"nodes": 2**23, "least": 8.5, "most": 2048, "seeds": 4096, "fanouts": ((15, 10, 5),)},
    },
    check=exact(),
)

Sample = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Edges = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Frontier node, neighbor, and place in the owner's list, for each edge."""


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    world_size, rank, index = draw.world_size, draw.rank, draw.index
    num_nodes = _num_nodes(size, world_size)
    shuffled = draw.shared_permutation(num_nodes)
    degree = _degrees(size, draw, shuffled)
    source = torch.arange(num_nodes, device=draw.device).repeat_interleave(degree)
    neighbors = draw.shared_integers(0, num_nodes, len(source))
    hubs = shuffled[-size.get("hubs", 1) :]
    if "hubs" in size:
        kind = draw.shared_uniform(0.0, 1.0, len(source))
        neighbors = torch.where(kind < 0.3, hubs[draw.shared_integers(0, len(hubs), len(source))], neighbors)
        neighbors = torch.where(kind > 0.95, source, neighbors)
    owner = draw.shared_integers(0, world_size, num_nodes)
    row_ptr = torch.zeros(num_nodes + 1, dtype=torch.int64, device=draw.device)
    row_ptr[1:] = torch.where(owner == rank, degree, 0).cumsum(0)
    col = neighbors[owner[source] == rank]
    arguments = (_seeds(size, draw, degree, hubs), _fanouts(size, index), row_ptr, col, owner)
    if index % 3 == 0:
        return arguments
    return (*arguments, Group.whole(world_size)) if index % 3 == 1 else (*arguments, None, False)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Sample]:
    return [_sample(_graph(inputs_of_all_ranks, one[4]), one[0], one[1]) for one in inputs_of_all_ranks]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Per frontier node, two row pointers (16 bytes) and its owner (8) are read; per edge, a neighbor (8) is read
    # and three numbers (24) are written; per node of the result, its id is written. What others own comes over
    # the link.
    num_nodes, seeds = _num_nodes(size, world_size), _num_seeds(size, world_size, 0, 0)
    frontier = seen = float(seeds)
    total_frontier = total_edges = 0.0
    for fanout in size["fanouts"][0]:
        total_frontier += frontier
        total_edges += frontier * _mean_taken(size, fanout)
        before, seen = seen, max(seen, num_nodes * (1 - exp(-(seeds + total_edges) / num_nodes)))
        frontier = seen - before
    away = (world_size - 1) / world_size
    return Cost(
        link_bytes=away * (16 * total_frontier + 8 * total_edges),
        hbm_bytes=24 * total_frontier + 32 * total_edges + 8 * seen,
        flops=0.0,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    graph, fanouts = _graph(inputs_of_all_ranks, inputs_of_all_ranks[0][4]), inputs_of_all_ranks[0][1]
    seeds = [one[0] for one in inputs_of_all_ranks]

    def answers(expand: "_Expand", extend: "_Extend" = _in_order_of_sight) -> list[Any]:
        return [_sample(graph, own, fanouts, expand, extend) for own in seeds]

    yield "new nodes sorted by id", answers(_expand, _sorted_by_id)
    yield "nodes seen in earlier hops taken for new", answers(_expand, _in_order_of_sight_in_hop)
    yield "row and col exchanged", [(node, col, row, edge) for node, row, col, edge in expected]
    yield "global ids in row and col", [(node, node[row], node[col], edge) for node, row, col, edge in expected]
    yield "last hop left out", [_sample(graph, own, fanouts[:-1]) for own in seeds]
    yield "self loops left out", answers(lambda g, f, k: _only(_expand(g, f, k), lambda e: e[0] != e[1]))
    yield "repeated neighbors left out", answers(lambda g, f, k: _only(_expand(g, f, k), _is_first_of_pair))
    yield "last neighbors of each row", answers(_expand_last)
    yield "reads on behind short rows", answers(_expand_beyond)
    yield "a fanout of -1 takes none", answers(lambda g, f, k: _expand(g, f, max(k, 0)))
    if world_size == 1:
        return
    yield "replies left in the order of owners", answers(_expand_by_owner)
    yield "edges counted over all ranks", [(*one[:3], one[3] + graph.shift[one[0][one[2]]]) for one in expected]
    yield (
        "rows of peers taken for empty",
        [_sample(_without(graph, {*range(world_size)} - {rank}), own, fanouts) for rank, own in enumerate(seeds)],
    )
    done = {rank for rank, (node, *_) in enumerate(expected) if len(node) == len(seeds[rank])}
    silent = _without(graph, done)
    yield (
        "ranks that are done answer no more",
        [_sample(graph, own, fanouts, _first_from(graph, silent)) for own in seeds],
    )


@dataclass(frozen=True)
class _Graph:
    """The rows of all ranks; all but `col` by node."""

    owner: torch.Tensor
    begin: torch.Tensor
    """Where the row begins in the owner's list."""
    degree: torch.Tensor
    shift: torch.Tensor
    """Where the owner's list begins in `col`."""
    col: torch.Tensor


_Expand = Callable[[_Graph, torch.Tensor, int], Edges]
_Extend = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _graph(inputs_of_all_ranks: list[tuple[Any, ...]], owner: torch.Tensor) -> _Graph:
    row_ptr = torch.stack([one[2] for one in inputs_of_all_ranks])
    lengths = torch.tensor([len(one[3]) for one in inputs_of_all_ranks], device=owner.device)
    begin = row_ptr[:, :-1].gather(0, owner[None])[0]
    end = row_ptr[:, 1:].gather(0, owner[None])[0]
    col = torch.cat([one[3] for one in inputs_of_all_ranks])
    return _Graph(owner, begin, end - begin, (lengths.cumsum(0) - lengths)[owner], col)


def _without(graph: _Graph, ranks: set[int]) -> _Graph:
    """The graph with the rows of some ranks taken for empty."""
    gone = torch.isin(graph.owner, torch.tensor(sorted(ranks), dtype=torch.int64, device=graph.owner.device))
    return replace(graph, degree=graph.degree.masked_fill(gone, 0))


def _expand(graph: _Graph, frontier: torch.Tensor, fanout: int) -> Edges:
    """Edges of the taken neighbors, cut out of a table with one line for each frontier node."""
    degree = graph.degree[frontier]
    taken = degree if fanout < 0 else degree.clamp_max(fanout)
    slot = torch.arange(int(taken.max()) if len(taken) else 0, device=frontier.device)
    table = graph.begin[frontier, None] + slot
    valid = slot < taken[:, None]
    parent = frontier[:, None].expand_as(table)[valid]
    edge = table[valid]
    # No valid place lies beyond the list; in the near misses some do.
    return parent, graph.col[(graph.shift[parent] + edge) % max(1, len(graph.col))], edge


def _in_order_of_sight(node: torch.Tensor, neighbor: torch.Tensor) -> torch.Tensor:
    """The nodes, and behind them the new ones among the neighbors."""
    joined = torch.cat([node, neighbor])
    return joined[_first_of_equal(joined)]


def _first_of_equal(ids: torch.Tensor) -> torch.Tensor:
    """Places of the first of each set of equal ids, ascending."""
    ordered, order = ids.sort(stable=True)
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return order[is_first].sort().values


def _sample(
    graph: _Graph,
    seeds: torch.Tensor,
    fanouts: list[int],
    expand: _Expand = _expand,
    extend: _Extend = _in_order_of_sight,
) -> Sample:
    node = frontier = seeds
    hops: list[Edges] = [(seeds[:0], seeds[:0], seeds[:0])]
    for fanout in fanouts:
        hops.append(expand(graph, frontier, fanout))
        longer = extend(node, hops[-1][1])
        node, frontier = longer, longer[len(node) :]
    parent, neighbor, edge = (torch.cat(part) for part in zip(*hops, strict=True))
    ordered, place = node.sort(stable=True)
    row, col = (place[torch.searchsorted(ordered, ids)] for ids in (neighbor, parent))
    return node, row, col, edge


def _sorted_by_id(node: torch.Tensor, neighbor: torch.Tensor) -> torch.Tensor:
    longer = _in_order_of_sight(node, neighbor)
    return torch.cat([node, longer[len(node) :].sort().values])


def _in_order_of_sight_in_hop(node: torch.Tensor, neighbor: torch.Tensor) -> torch.Tensor:
    return torch.cat([node, neighbor[_first_of_equal(neighbor)]])


def _only(edges: Edges, keep: Callable[[Edges], torch.Tensor]) -> Edges:
    kept = keep(edges)
    return edges[0][kept], edges[1][kept], edges[2][kept]


def _is_first_of_pair(edges: Edges) -> torch.Tensor:
    pair = edges[0] * (1 + max(int(ids.max()) if len(ids) else 0 for ids in edges[:2])) + edges[1]
    is_first = torch.zeros_like(pair, dtype=torch.bool)
    is_first[_first_of_equal(pair)] = True
    return is_first


def _expand_last(graph: _Graph, frontier: torch.Tensor, fanout: int) -> Edges:
    skipped = torch.zeros_like(graph.degree) if fanout < 0 else (graph.degree - fanout).clamp_min(0)
    return _expand(replace(graph, begin=graph.begin + skipped), frontier, fanout)


def _expand_beyond(graph: _Graph, frontier: torch.Tensor, fanout: int) -> Edges:
    longer = graph if fanout < 0 else replace(graph, degree=torch.full_like(graph.degree, fanout))
    return _expand(longer, frontier, fanout)


def _first_from(graph: _Graph, later: _Graph) -> _Expand:
    """The first hop in one graph, those that follow in another."""
    hops = iter([graph])
    return lambda _, frontier, fanout: _expand(next(hops, later), frontier, fanout)


def _expand_by_owner(graph: _Graph, frontier: torch.Tensor, fanout: int) -> Edges:
    return _expand(graph, frontier[graph.owner[frontier].argsort(stable=True)], fanout)


def _num_nodes(size: Size, world_size: int) -> int:
    num_nodes = int(size["nodes"] + world_size * size.get("nodes_per_rank", 0))
    return num_nodes if "nodes_per_rank" in size else -(-num_nodes // world_size) * world_size


def _num_seeds(size: Size, world_size: int, rank: int, index: int) -> int:
    if "hubs" in size:
        return int(size["seeds"] + (rank + index) % 3)
    return int(size["seeds"] * (2 if world_size == 1 and "degree" in size else 1))


def _fanouts(size: Size, index: int) -> list[int]:
    return list(size["fanouts"][index % len(size["fanouts"])])


def _mean_taken(size: Size, fanout: int) -> float:
    """Mean of min(fanout, degree)."""
    if "degree" in size:
        return float(min(fanout, size["degree"]))
    if "least" in size:
        # Degrees least / sqrt(U), U uniform.
        least = size["least"]
        return float(2 * least - least**2 / fanout if fanout > least else fanout)
    return 0.8 * sum(min(fanout, degree) for degree in range(1, 9)) / 8


def _degrees(size: Size, draw: Draw, shuffled: torch.Tensor) -> torch.Tensor:
    num_nodes = len(shuffled)
    if "degree" in size:
        return torch.full_like(shuffled, size["degree"])
    if "least" in size:
        place = draw.shared_uniform(0.0, 1.0, num_nodes).clamp_min(2.0**-30)
        least: float = size["least"]
        return (least * place.rsqrt()).clamp_max(size["most"]).long()
    degree = draw.shared_integers(1, 9, num_nodes)
    degree[shuffled[: num_nodes // 5]] = 0
    degree[shuffled[-1]] = 30
    return degree


def _seeds(size: Size, draw: Draw, degree: torch.Tensor, hubs: torch.Tensor) -> torch.Tensor:
    """Distinct nodes, among them nodes that are neighbors of many; in every third draw, one rank's have none."""
    world_size, rank, index = draw.world_size, draw.rank, draw.index
    count = _num_seeds(size, world_size, rank, index)
    order = draw.permutation(len(degree))
    if "hubs" not in size:
        return order[:count]
    if world_size > 1 and index % 3 == 1 and rank == index // 3 % world_size:
        return order[degree[order] == 0][:count]
    popular = hubs[draw.permutation(len(hubs))[:3]]
    return torch.cat([popular, order[~torch.isin(order, popular)][: count - 3]])
