"""Multi-hop neighborhood of seed nodes in a graph partitioned over ranks.

The n nodes of a graph are spread over the ranks of the group (W ranks, in group order): `node_to_rank` [n] int64,
equal on all ranks, names the owner of each. Rank r holds, in compressed rows, the neighbors of its own nodes:
`local_adj_row_ptr` [n+1] int64 is indexed by global node id, `local_adj_col` [m] int64 holds global node ids, and
the neighbors of v are local_adj_col[local_adj_row_ptr[v] : local_adj_row_ptr[v+1]] on the owner of v; on all other
ranks that row is empty. Rows may hold v itself, and a neighbor several times. m differs by rank.

Each rank asks for the neighborhood of its own `seed_nodes` [S] int64 (distinct, S differs by rank). `fanouts` is a
list of positive numbers or -1, equal on all ranks, one number a hop. Sampling is deterministic: of each node the
first min(k, degree) neighbors in storage order are taken, all for k = -1; `replace` is always False. The list of
nodes begins with the seeds, which are the first frontier. A hop with fanout k goes through the frontier in order and
through the taken neighbors u of each frontier node v in order; each gives an edge (u, v, e), where e is the place of
u in the OWNER's local_adj_col. A node u that is not yet in the list is appended to it at once; the nodes appended in
a hop, in that order, are the next frontier. A rank whose frontier is empty samples no more but still has to answer.

Every rank returns four new int64 tensors (node [U], row [T], col [T], edge [T]) for its own seeds: node is the list
of global ids; for the edges of all hops in the order of taking, row is the place of u in node, col the place of v,
edge is e. `group` None is the default group. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(
    seed_nodes: torch.Tensor,
    fanouts: list[int],
    local_adj_row_ptr: torch.Tensor,
    local_adj_col: torch.Tensor,
    node_to_rank: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    replace: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    node = frontier = seed_nodes
    unseen = torch.iinfo(torch.int64).max
    place = torch.full_like(node_to_rank, unseen)
    place[node] = torch.arange(len(node), device=node.device)
    rows, cols, edges = [], [], []
    for fanout in fanouts:
        taken, neighbor, edge = _ask(frontier, fanout, local_adj_row_ptr, local_adj_col, node_to_rank, group)
        cols.append(place[frontier].repeat_interleave(taken, output_size=len(neighbor)))
        # Nodes seen before keep their smaller place, new ones get that of their first sight, gaps included.
        sight = torch.arange(len(node), len(node) + len(neighbor), device=node.device)
        place.scatter_reduce_(0, neighbor, sight, reduce="amin")
        frontier = neighbor[place[neighbor] == sight]
        place[frontier] = torch.arange(len(node), len(node) + len(frontier), device=node.device)
        rows.append(place[neighbor])
        edges.append(edge)
        node = torch.cat([node, frontier])
    return node, torch.cat(rows), torch.cat(cols), torch.cat(edges)


def _ask(
    frontier: torch.Tensor,
    fanout: int,
    row_ptr: torch.Tensor,
    col: torch.Tensor,
    node_to_rank: torch.Tensor,
    group: dist.ProcessGroup | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """How many neighbors each frontier node has that are taken, these neighbors, and their edges."""
    world_size, device = dist.get_world_size(group), frontier.device
    owner, order = torch.sort(node_to_rank[frontier], stable=True)
    ends = torch.searchsorted(owner, torch.arange(world_size + 1, device=device))
    counts = ends.diff()
    peer_counts = torch.empty_like(counts)
    dist.all_to_all_single(peer_counts, counts, group=group)
    asked_splits, answered_splits = torch.stack([counts, peer_counts]).tolist()

    asked = frontier.new_empty(sum(answered_splits))
    dist.all_to_all_single(asked, frontier[order], answered_splits, asked_splits, group=group)
    first = row_ptr[asked]
    num_sent = row_ptr[asked + 1] - first
    if fanout >= 0:
        num_sent.clamp_(max=fanout)
    num_received = torch.empty_like(frontier)
    dist.all_to_all_single(num_received, num_sent, asked_splits, answered_splits, group=group)

    sent_ends, received_ends = (torch.cat([n.new_zeros(1), n.cumsum(0)]) for n in (num_sent, num_received))
    peer_ends = torch.cat([peer_counts.new_zeros(1), peer_counts.cumsum(0)])
    sizes = torch.stack([sent_ends[peer_ends].diff(), received_ends[ends].diff()])
    sent_splits, received_splits = sizes.tolist()

    edge = _places(first, num_sent, sent_ends, sum(sent_splits))
    answer = torch.stack([col[edge], edge], dim=1)
    received = answer.new_empty((sum(received_splits), 2))
    dist.all_to_all_single(received, answer, received_splits, sent_splits, group=group)

    # From the order of owners back into that of the frontier.
    taken, begin = torch.empty_like(frontier), torch.empty_like(frontier)
    taken[order], begin[order] = num_received, received_ends[:-1]
    taken_ends = torch.cat([taken.new_zeros(1), taken.cumsum(0)])
    neighbor, edge = received[_places(begin, taken, taken_ends, len(received))].unbind(dim=1)
    return taken, neighbor, edge


def _places(first: torch.Tensor, count: torch.Tensor, ends: torch.Tensor, total: int) -> torch.Tensor:
    """first[i], first[i] + 1, ... (count[i] of them) for each i; `ends` are the sums of counts from 0 on."""
    shift = (first - ends[:-1]).repeat_interleave(count, output_size=total)
    return shift + torch.arange(total, device=first.device)
