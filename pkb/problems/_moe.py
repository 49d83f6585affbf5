"""Expert-parallel layout that the mixture-of-experts problems share: who routes what where, in one process.

E experts on W ranks, E a multiple of W: rank d hosts experts d E/W to (d+1) E/W - 1. A mask [E, K, M] holds 1 where
slot k of token t chose expert e. Dispatched rows lie in the order (expert, source rank, token), so that the rows of
all ranks one after the other are the routed pairs of all ranks' tokens in the order (expert, token).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import Any, NamedTuple

import torch

from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Size, dtype_bytes

MARGIN = 0.125
"""Least gap between the logits of the last expert chosen and the first one left out, so that no rounding matters."""

NOBODY = -40.0
"""Bias of an expert that nobody chooses."""

BLOCK_ROWS = 16384
"""Rows that the oracle computes at a time, so that float64 temporaries stay small."""

Mlp = Callable[[torch.Tensor], torch.Tensor]
"""Rows to rows in float64."""

Projections = tuple[Mlp, Mlp, Mlp]
"""Gate, up and down."""


class Pairs(NamedTuple):
    """Routed pairs of all ranks' tokens, by expert, then by token; tokens are numbered through, rank after rank."""

    expert: torch.Tensor
    token: torch.Tensor
    num_experts: int

    def places(self, world_size: int) -> list[torch.Tensor]:
        """For each rank, which pairs are of the experts that it hosts."""
        owner = self.expert // (self.num_experts // world_size)
        return [(owner == rank).nonzero().flatten() for rank in range(world_size)]


class Splits(NamedTuple):
    """What one rank is told of the exchange."""

    sent: list[int]
    received: list[int]
    per_local_expert: torch.Tensor
    """[W, E/W]: rows from each source for each expert hosted here, int64."""


def shared_choices(draw: Draw, rows: Sequence[int], num_experts: int, top_k: int) -> list[torch.Tensor]:
    """For the tokens of each rank `top_k` different experts, int64 [rows, top_k], equal on all ranks.

    Experts are drawn by weights u^3, which differ by rank; in draws 1, 4, ... nobody chooses rank 0's experts, in
    draws 2, 5, ... nearly all choose the same neighboring experts.
    """
    world_size = draw.world_size
    weights = draw.shared_uniform(0.02, 1.0, world_size, num_experts) ** 3
    if draw.index % 3 == 1 and world_size > 1:
        weights[:, : num_experts // world_size] = 0
    if draw.index % 3 == 2:
        hot = (draw.index + torch.arange(top_k, device=draw.device)) % num_experts
        cold = torch.full_like(weights, 1e-4)
        weights = weights * cold.index_fill_(1, hot, 1.0)
    choices = []
    for num_rows, own in zip(rows, weights, strict=True):
        # The largest of log(weight) + Gumbel noise: a draw by weight without replacement, in random slot order.
        noise = -(-draw.shared_uniform(0.0, 1.0, num_rows, num_experts).clamp_min(1e-30).log()).log()
        experts = (own.log() + noise).topk(top_k, dim=-1).indices
        slots = draw.shared_uniform(0.0, 1.0, num_rows, top_k).argsort(dim=-1)
        choices.append(experts.gather(1, slots))
    return choices


def choice_mask(choice: torch.Tensor, num_experts: int, dtype: torch.dtype) -> torch.Tensor:
    """Mask [E, K, M] of experts [M, K]: a view whose memory order is [M, K, E]. A choice of -1 is a cleared slot."""
    mask = torch.zeros(*choice.shape, num_experts, dtype=dtype, device=choice.device)
    mask.scatter_(2, choice.clamp_min(0).unsqueeze(-1), (choice >= 0).to(dtype).unsqueeze(-1))
    return mask.permute(2, 1, 0)


def with_drops(choice: torch.Tensor, draw: Draw) -> torch.Tensor:
    """The choices with a quarter of the slots cleared, token 0 without any, and one expert in all of token 1."""
    dropped = choice.masked_fill(draw.shared_uniform(0.0, 1.0, *choice.shape) < 0.25, -1)
    dropped[0], dropped[1] = -1, choice[1, 0]
    return dropped


def routed_counts(choices: Sequence[torch.Tensor], num_experts: int) -> torch.Tensor:
    """Pairs of each rank's tokens by expert, int64 [W, E]. An expert that a token names twice counts once."""
    counts = []
    for choice in choices:
        named = torch.zeros(len(choice), num_experts + 1, dtype=torch.bool, device=choice.device)
        named.scatter_(1, choice.remainder(num_experts + 1), True)
        counts.append(named[:, :num_experts].sum(dim=0))
    return torch.stack(counts)


def splits(counts: torch.Tensor, rank: int) -> Splits:
    """What the counts [W, E] of all ranks tell one rank."""
    world_size = counts.shape[0]
    table = counts.view(world_size, world_size, -1)
    received = table[:, rank].contiguous()
    return Splits(table[rank].sum(dim=-1).tolist(), received.sum(dim=-1).tolist(), received)


def pairs_of(maps: Sequence[torch.Tensor]) -> Pairs:
    """Routed pairs of all ranks' maps [E, tokens of the rank]."""
    expert, token = torch.cat([one != 0 for one in maps], dim=1).nonzero(as_tuple=True)
    return Pairs(expert, token, maps[0].shape[0])


def mean_ranks_of_token(num_experts: int, top_k: int, world_size: int) -> float:
    """How many different ranks host a token's experts, in the mean over all choices of different experts."""
    per_rank = num_experts // world_size
    return world_size * (1 - comb(num_experts - per_rank, top_k) / comb(num_experts, top_k))


@dataclass(frozen=True)
class Batch:
    """Tokens of all ranks with the weights of their experts, and the ranks that host these."""

    tokens: list[torch.Tensor]
    """[M, H] for each rank."""
    weights: list[torch.Tensor]
    """[M, E] for each rank, float64; 0 for experts that are not chosen."""
    mlps: list[Mlp]
    """What the experts of each rank compute."""
    hosts: list[tuple[int, ...]]
    """For each rank the ranks that its tokens' experts are dealt out to."""

    def answers(self, weights: list[torch.Tensor] | None = None, mlps: list[list[Mlp]] | None = None) -> list[Any]:
        """Weighted sums over experts, with other weights or with other MLPs for each rank's tokens."""
        by_rank = mlps or [[self.mlps[host] for host in hosts] for hosts in self.hosts]
        shares = []
        for own, hosted in zip(weights or self.weights, by_rank, strict=True):
            shares.append(own.view(len(own), len(hosted), -1).sum(dim=-1))
        totals = [share.new_zeros(x.shape) for share, x in zip(shares, self.tokens, strict=True)]
        # The experts of a host share its MLP, which computes its rows of all ranks' tokens together.
        for mlp, cells in _cells(by_rank).items():
            chosen = [shares[rank][:, column].nonzero().flatten() for rank, column in cells]
            rows = torch.cat([self.tokens[rank][at] for (rank, _), at in zip(cells, chosen, strict=True)])
            computed = torch.cat([mlp(block.double()) for block in torch.split(rows, BLOCK_ROWS)])
            parts = torch.split(computed, [len(at) for at in chosen])
            for (rank, column), at, part in zip(cells, chosen, parts, strict=True):
                totals[rank].index_add_(0, at, shares[rank][at, column, None] * part)
        return totals


def linear(draw: Draw, fan_in: int, fan_out: int, *, bias: bool) -> torch.nn.Linear:
    """A layer of this rank with weights 1.5 N(0, 1) / sqrt(fan_in) and biases 0.5 N(0, 1)."""
    layer = torch.nn.Linear(fan_in, fan_out, bias=bias, device="meta", dtype=draw.dtype)
    layer.weight = torch.nn.Parameter(draw.normal(fan_out, fan_in, scale=1.5 * fan_in**-0.5), requires_grad=False)
    if bias:
        layer.bias = torch.nn.Parameter(draw.normal(fan_out, scale=0.5), requires_grad=False)
    return layer


def layers(draw: Draw, hidden: int, inner: int, *, bias: bool) -> list[torch.nn.Linear]:
    """Gate, up and down projection of this rank."""
    shapes = ((hidden, inner), (hidden, inner), (inner, hidden))
    return [linear(draw, fan_in, fan_out, bias=bias) for fan_in, fan_out in shapes]


def permuted_router(draw: Draw, num_experts: int, hidden: int, *, own: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of a router that gives the experts unequal loads and one of them none."""
    scale = 1.5 * hidden**-0.5
    weight = (draw.normal if own else draw.shared_normal)(num_experts, hidden, scale=scale)
    order = draw.permutation(num_experts) if own else draw.shared_permutation(num_experts)
    bias = torch.linspace(1, -1, num_experts, device=draw.device)
    bias[num_experts // 2] = NOBODY
    return weight, bias[order].to(draw.dtype)


def sloped_arguments(size: Size, draw: Draw, num_experts: int, top_k: int) -> tuple[Any, ...]:
    """Arguments up to top_k where the router's bias falls from `slope` to -slope over the experts.

    In odd draws at tiny sizes nobody chooses the last expert, if there is another to choose. Routers are shared unless
    the size says `own_router`; where there is `lead`, tokens have three dimensions.
    """
    hidden, index = size["hidden"], draw.index
    normal = draw.normal if size.get("own_router", False) else draw.shared_normal
    gate_weight = normal(num_experts, hidden, scale=1.5 * hidden**-0.5)
    bias = torch.linspace(size["slope"], -size["slope"], num_experts, device=draw.device)
    if size.get("tiny", False) and index % 2 == 1 and num_experts > top_k:
        bias[-1] = NOBODY
    gate_bias = bias.to(draw.dtype)
    tokens = tokens_with_margin(draw, size["rows"], gate_weight, gate_bias, top_k)
    if "lead" in size:
        tokens = tokens.view(size["lead"], -1, hidden)
    return tokens, gate_weight, gate_bias, *layers(draw, hidden, size["inner"], bias=True), num_experts, top_k


def router_logits(tokens: torch.Tensor, gate_weight: torch.Tensor, gate_bias: torch.Tensor | None) -> torch.Tensor:
    """Logits [M, E] in float64."""
    logits = tokens.double() @ gate_weight.double().t()
    return logits if gate_bias is None else logits + gate_bias.double()


def tokens_with_margin(
    draw: Draw, num_tokens: int, gate_weight: torch.Tensor, gate_bias: torch.Tensor | None, top_k: int
) -> torch.Tensor:
    """Tokens N(0, 1) of this rank whose choice of experts has a margin, [num_tokens, H]."""
    kept: list[torch.Tensor] = []
    while sum(map(len, kept)) < num_tokens:
        drawn = draw.normal(2 * num_tokens, gate_weight.shape[1])
        if top_k == gate_weight.shape[0]:
            kept.append(drawn)
            continue
        best = router_logits(drawn, gate_weight, gate_bias).topk(top_k + 1, dim=-1).values
        kept.append(drawn[best[:, -2] - best[:, -1] > MARGIN])
    return torch.cat(kept)[:num_tokens].contiguous()


def chosen_weights(
    tokens: torch.Tensor, gate_weight: torch.Tensor, gate_bias: torch.Tensor | None, top_k: int
) -> torch.Tensor:
    """Probabilities of the `top_k` most probable experts, 0 for the others, [M, E] in float64."""
    p = router_logits(tokens, gate_weight, gate_bias).softmax(dim=-1)
    return torch.where(p >= p.topk(top_k, dim=-1).values[:, -1:], p, 0.0)


def projection(layer: torch.nn.Linear) -> Mlp:
    """The layer in float64."""

    def apply(rows: torch.Tensor) -> torch.Tensor:
        product = torch.mm(rows, layer.weight.double().t())
        return product if layer.bias is None else product + layer.bias.double()

    return apply


def silu(a: torch.Tensor) -> torch.Tensor:
    """a / (1 + exp(-a))."""
    return a / (1 + torch.exp(-a))


def gated_mlp(gate: Mlp, up: Mlp, down: Mlp, activation: Mlp = silu) -> Mlp:
    """down(activation(gate(x)) * up(x))."""
    return lambda rows: down(activation(gate(rows)) * up(rows))


def batch_of(
    inputs_of_all_ranks: list[tuple[Any, ...]], mlps: list[Mlp], top_k: int, hosts: list[tuple[int, ...]] | None = None
) -> Batch:
    """Arguments that begin with tokens and router of each rank; without hosts all ranks are hosts."""
    tokens = [one[0].flatten(0, -2) for one in inputs_of_all_ranks]
    routers = [one[1:3] for one in inputs_of_all_ranks]
    weights = [chosen_weights(x, gate, bias, top_k) for x, (gate, bias) in zip(tokens, routers, strict=True)]
    return Batch(tokens, weights, mlps, hosts or [tuple(range(len(mlps)))] * len(mlps))


def projections_of(inputs_of_all_ranks: list[tuple[Any, ...]]) -> list[Projections]:
    """Gate, up and down of every rank, the arguments after tokens and router."""
    return [(projection(gate), projection(up), projection(down)) for _, _, _, gate, up, down, *_ in inputs_of_all_ranks]


def forward_near_misses(
    batch: Batch, inputs_of_all_ranks: list[tuple[Any, ...]], projections: Sequence[Projections], top_k: int
) -> Iterator[tuple[str, list[Any]]]:
    """Wrong weights, experts, routers and MLPs; those that cannot be wrong in this draw are left out."""
    yield from _routing_near_misses(batch)
    yield from _router_near_misses(batch, inputs_of_all_ranks, top_k)
    for name, mlps in _other_mlps(projections):
        yield name, replace(batch, mlps=mlps).answers()


def _router_near_misses(
    batch: Batch, inputs_of_all_ranks: list[tuple[Any, ...]], top_k: int
) -> Iterator[tuple[str, list[Any]]]:
    routers = [one[1:3] for one in inputs_of_all_ranks]
    if routers[0][1] is not None and routers[0][0].shape[0] > 1:
        no_bias = [chosen_weights(x, gate, None, top_k) for x, (gate, _) in zip(batch.tokens, routers, strict=True)]
        yield "router's bias left out", batch.answers(weights=no_bias)
    if any(not torch.equal(gate, routers[0][0]) for gate, _ in routers):
        first = [chosen_weights(x, routers[0][0], routers[0][1], top_k) for x in batch.tokens]
        yield "first rank's router", batch.answers(weights=first)


def forward_cost(size: Size, num_hosts: int, dtype: Dtype) -> Cost:
    """Least work of a rank with `rows` tokens, for a choice of `top_k` different experts with equal weights.

    A row travels once to each rank that hosts an expert of its token, and its result once back.
    """
    rows, hidden, inner, num_experts = size["rows"], size["hidden"], size["inner"], size["num_experts"]
    pairs = rows * mean_ranks_of_token(num_experts, size["top_k"], num_hosts)
    remote = pairs * (num_hosts - 1) / num_hosts
    # Layers, router, tokens and results pass device memory once; rows from and for other ranks are written where
    # they arrive and read from there.
    elems = 3 * hidden * inner + num_experts * hidden + 2 * rows * hidden + 4 * remote * hidden
    return Cost(
        link_bytes=2 * remote * hidden * dtype_bytes(dtype),
        hbm_bytes=elems * dtype_bytes(dtype),
        flops=6 * hidden * inner * pairs + 2 * rows * hidden * num_experts,
    )


def _other_mlps(projections: Sequence[Projections]) -> Iterator[tuple[str, list[Mlp]]]:
    yield "SiLU left out", [gated_mlp(*one, activation=lambda a: a) for one in projections]
    yield "ReLU in place of SiLU", [gated_mlp(*one, activation=torch.relu) for one in projections]
    yield "sigmoid in place of SiLU", [gated_mlp(*one, activation=torch.sigmoid) for one in projections]
    yield "gate and up exchanged", [gated_mlp(up, gate, down) for gate, up, down in projections]


def _routing_near_misses(batch: Batch) -> Iterator[tuple[str, list[Any]]]:
    for name, change in (
        ("weights renormalized", lambda w, n: w / w.sum(dim=-1, keepdim=True)),
        ("weights left out", lambda w, n: (w > 0).double()),
        ("best expert alone", lambda w, n: torch.where(w == w.amax(dim=-1, keepdim=True), w, 0.0)),
        ("expert with the least weight left out", _without_least),
        ("one weight for each token and rank", _best_of_each_host),
        ("last expert of a rank overwrites the others", _last_of_each_host),
        ("slots beyond a balanced load dropped", _within_capacity),
        ("expert i on rank i mod W", lambda w, n: w.view(len(w), -1, n).transpose(1, 2).flatten(1)),
    ):
        changed = [change(w, len(hosts)) for w, hosts in zip(batch.weights, batch.hosts, strict=True)]
        if any(not torch.allclose(new, w) for new, w in zip(changed, batch.weights, strict=True)):
            yield name, batch.answers(weights=changed)
    yield "added to the call before", [2 * one for one in batch.answers()]
    if max(map(len, batch.hosts)) == 1:
        return
    own = [[batch.mlps[rank]] * len(hosts) for rank, hosts in enumerate(batch.hosts)]
    yield "layers of the token's rank", batch.answers(mlps=own)
    first = [[batch.mlps[hosts[0]]] * len(hosts) for hosts in batch.hosts]
    yield "layers of the group's first rank", batch.answers(mlps=first)
    swapped = [[batch.mlps[host] for host in (*hosts[1:], hosts[0])] for hosts in batch.hosts]
    yield "layers of the next rank", batch.answers(mlps=swapped)


def _cells(by_rank: list[list[Mlp]]) -> dict[Mlp, list[tuple[int, int]]]:
    """For each MLP the (rank of the tokens, column of the rank's hosts) that it computes."""
    cells: dict[Mlp, list[tuple[int, int]]] = {}
    for rank, hosted in enumerate(by_rank):
        for column, mlp in enumerate(hosted):
            cells.setdefault(mlp, []).append((rank, column))
    return cells


def _without_least(weights: torch.Tensor, num_hosts: int) -> torch.Tensor:
    is_least = (weights > 0) & (weights == torch.where(weights > 0, weights, 2.0).amin(dim=-1, keepdim=True))
    return weights.masked_fill(is_least, 0.0)


def _best_of_each_host(weights: torch.Tensor, num_hosts: int) -> torch.Tensor:
    by_host = weights.view(len(weights), num_hosts, -1)
    return torch.where(by_host == by_host.amax(dim=-1, keepdim=True), by_host, 0.0).flatten(1)


def _last_of_each_host(weights: torch.Tensor, num_hosts: int) -> torch.Tensor:
    by_host = weights.view(len(weights), num_hosts, -1)
    later = by_host.flip(-1).cumsum(dim=-1).flip(-1) - by_host
    return torch.where(later > 0, 0.0, by_host).flatten(1)


def _within_capacity(weights: torch.Tensor, num_hosts: int) -> torch.Tensor:
    is_chosen = weights > 0
    capacity = -(-int(is_chosen.sum()) // weights.shape[1])
    return torch.where(is_chosen.cumsum(dim=0) > capacity, 0.0, weights)
