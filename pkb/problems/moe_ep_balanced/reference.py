"""Top-k mixture-of-experts forward with one expert a rank.

On a group of W ranks, in group order, rank d hosts expert d: E = `num_experts` is W. The expert consists of rank d's
three layers, `gate_proj` and `up_proj`, nn.Linear(H, I), and `down_proj`,
nn.Linear(I, H), each with or without a bias: f_d(x) = down_d(silu(gate_d(x)) * up_d(x)), silu(a) = a / (1 + exp(-a)).
Each rank holds tokens of its own, `hidden_states` [M, H] (or [..., H], flattened to M rows), and a router of its own,
`gate_weight` [E, H] and `gate_bias` [E] or None. E, H, I, M, `top_k` <= E and the dtype are equal on all ranks, the
values of routers and layers need not be. A rank routes its own tokens with its own router: z = x gate_weight^T +
gate_bias, p = softmax(z) over all E, S_t = the top_k experts of token t by p. It returns out [M, H], a new tensor in
the input dtype, always of two dimensions, tokens in their order: out[t] = sum over e in S_t of p[t, e] f_d(x_t), where
d is the rank that hosts e. The p are not renormalized over S_t. Which of equal p are chosen is free. An expert or a
rank may get no token at all, or nearly all of them, and no token is dropped.

Products accumulate in float32; z, p, the three layers, silu, products and partial sums may each be rounded to the
input dtype. The result need not carry a gradient graph. `group` None is the default
group. All inputs stay as they were.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def solution(
    hidden_states: torch.Tensor,
    gate_weight: torch.Tensor,
    gate_bias: torch.Tensor | None,
    gate_proj: nn.Linear,
    up_proj: nn.Linear,
    down_proj: nn.Linear,
    num_experts: int,
    top_k: int,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    world_size = dist.get_world_size(group)
    hidden = hidden_states.reshape(-1, hidden_states.shape[-1])
    weights, experts = F.linear(hidden, gate_weight, gate_bias).softmax(dim=-1).topk(top_k, dim=-1)
    # All experts of a rank share one MLP, so rows are sorted by rank alone.
    owner, order = (experts // (num_experts // world_size)).flatten().sort(stable=True)
    rows = hidden[order // top_k]
    if world_size == 1:
        rows = down_proj(F.silu(gate_proj(rows)) * up_proj(rows))
    else:
        sent_counts = torch.searchsorted(owner, torch.arange(world_size + 1, device=owner.device)).diff()
        received_counts = torch.empty_like(sent_counts)
        dist.all_to_all_single(received_counts, sent_counts, group=group)
        sent, received = torch.stack([sent_counts, received_counts]).tolist()
        rows = _exchange(rows, received, sent, group)
        rows = down_proj(F.silu(gate_proj(rows)) * up_proj(rows))
        rows = _exchange(rows, sent, received, group)
    by_slot = torch.empty_like(rows)
    by_slot[order] = rows
    return torch.bmm(weights.unsqueeze(1), by_slot.view(len(hidden), top_k, -1)).squeeze(1)


def _exchange(
    rows: torch.Tensor, received: list[int], sent: list[int], group: dist.ProcessGroup | None
) -> torch.Tensor:
    result = rows.new_empty((sum(received), rows.shape[1]))
    dist.all_to_all_single(result, rows, received, sent, group=group)
    return result
