"""Load-balancing loss of each rank, averaged."""

import torch
import torch.distributed as dist


def solution(gate_logits, num_experts, top_k=2, attention_mask=None):
    layers = (gate_logits,) if isinstance(gate_logits, torch.Tensor) else tuple(gate_logits)
    probs = torch.cat(layers).softmax(dim=-1).float()
    chosen = probs.topk(top_k, dim=-1).indices
    weight = torch.ones(len(probs), 1)
    if attention_mask is not None:
        weight = attention_mask.flatten().float().repeat(len(layers)).unsqueeze(1)
    hits = torch.zeros_like(probs).scatter_(1, chosen, weight.expand(chosen.shape))
    num_rows = weight.sum()
    loss = num_experts * torch.dot(hits.sum(0) / num_rows, (probs * weight).sum(0) / num_rows)
    dist.all_reduce(loss)
    return loss / dist.get_world_size()
