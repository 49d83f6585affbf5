"""Router load-balancing loss, averaged over ranks.

Each rank holds `gate_logits`, a tensor [T, E] or a tuple or list of L of them (one a layer), E = `num_experts`, and
`attention_mask`, None or a tensor [B, S] of zeros and ones of any number dtype with B S = T. T, L and the mask may
differ by rank, and so may whether there is one; E, `top_k` and the dtype are equal on all ranks.

Over the L T rows of a rank (layers one after the other): p = softmax of a row; hit[i, x] = 1 if expert x is among the
row's top_k by p, else 0; weight m_i = 1, or the mask flattened (row-major) and repeated for each layer, with a sum
above 0. f[x] = sum_i m_i hit[i, x] / sum_i m_i, which add up to top_k; P[x] = sum_i m_i p[i, x] / sum_i m_i; the
rank's loss is E sum_x f[x] P[x]. Every rank returns the mean of all ranks' losses (not the loss of pooled f and P),
a new scalar tensor in float32. p may be rounded to the logits' dtype before it is compared and added up; of equal
p any may be chosen. Sums over rows are float32. All inputs stay as they were.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist


def solution(
    gate_logits: torch.Tensor | Sequence[torch.Tensor],
    num_experts: int,
    top_k: int = 2,
    attention_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    layers = (gate_logits,) if isinstance(gate_logits, torch.Tensor) else tuple(gate_logits)
    probs = (layers[0] if len(layers) == 1 else torch.cat(layers)).softmax(dim=-1)
    chosen = probs.topk(top_k, dim=-1, sorted=False).indices
    if attention_mask is None:
        hits = torch.zeros_like(probs).scatter_(1, chosen, 1.0)
        num_rows: torch.Tensor | int = probs.shape[0]
    else:
        weight = attention_mask.flatten().to(probs.dtype).repeat(len(layers)).unsqueeze(1)
        hits = torch.zeros_like(probs).scatter_(1, chosen, weight.expand_as(chosen))
        probs = probs * weight
        num_rows = weight.sum(dtype=torch.float32)
    f = hits.sum(dim=0, dtype=torch.float32) / num_rows
    P = probs.sum(dim=0, dtype=torch.float32) / num_rows
    loss = num_experts * torch.dot(f, P)
    dist.all_reduce(loss, op=dist.ReduceOp.SUM)
    return loss / dist.get_world_size()
