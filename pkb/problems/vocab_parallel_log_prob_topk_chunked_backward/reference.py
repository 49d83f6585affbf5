"""Gradient of filtered log-probabilities with respect to logits whose vocabulary is split over ranks, in chunks.

With W ranks in the group and V classes, rank r holds `vocab_parallel_logits` [B, S, V/W], columns r V/W to (r+1) V/W
- 1 of the logits x, and `target` [B, S] int64, equal on all ranks, with global class ids 0 <= target < V.
`grad_output` [B, S], equal on all ranks, is the gradient with respect to the log-probabilities of the targets. The
flattened tokens (row-major over B and S) are meant to be taken B max(1, `chunk_size`) at a time, the last time
perhaps fewer; the result does not depend on it, it only bounds the memory. ValueError if W does not divide B S or B
max(1, chunk_size).

Filter, in float32 on the given logits. If `top_k` is not None and greater than 0: k = min(top_k, V), tau = the k-th
largest logit of the row, logits >= tau are kept (all that equal tau stay). Then, if `top_p` is not None and less than
1: with p the softmax over what top-k kept, a token stays if the sum of the p ranked above it is < top_p, or if it is
the first; that is, in ascending order, where the inclusive running sum is > 1 - top_p, and always the last. Of equal
logits, those that are cut off may be any.

P = softmax over the kept logits of a row, 0 at removed ones. The gradient at v is grad_output ([v = target] - P[v])
if v was kept, and exactly 0 if not: also if v is the target, and then the kept ones still get -P grad_output. Rank r
returns columns r V/W to (r+1) V/W - 1, a new tensor [B, S, V/W] in float32 whatever the logits' dtype. `tp_group`
None is the default group. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(
    vocab_parallel_logits: torch.Tensor,
    target: torch.Tensor,
    grad_output: torch.Tensor,
    tp_group: dist.ProcessGroup | None = None,
    top_k: int | None = None,
    top_p: float | None = 1.0,
    chunk_size: int = 1,
) -> torch.Tensor:
    world_size, rank = dist.get_world_size(tp_group), dist.get_rank(tp_group)
    num_tokens, per_chunk = target.numel(), target.shape[0] * max(1, chunk_size)
    if num_tokens % world_size or per_chunk % world_size:
        raise ValueError(f"{world_size} ranks do not divide {num_tokens} tokens in chunks of {per_chunk}.")
    result = torch.empty_like(vocab_parallel_logits, dtype=torch.float32)
    tensors = (
        vocab_parallel_logits.flatten(0, 1),
        target.flatten(),
        grad_output.flatten(),
        result.view(num_tokens, -1),
    )
    for local, *own, columns in zip(*(torch.split(tensor, per_chunk) for tensor in tensors), strict=True):
        logits = _token_shard(local, world_size, tp_group)
        own_target, own_grad = (tensor.chunk(world_size)[rank] for tensor in own)
        grad = _grad(logits, own_target.unsqueeze(-1), own_grad.float().unsqueeze(-1), top_k, top_p)
        grad = grad.view(len(grad), world_size, -1).transpose(0, 1).contiguous()
        dist.all_to_all_single(columns, grad.view(columns.shape), group=tp_group)
    return result


def _token_shard(logits: torch.Tensor, world_size: int, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Whole rows [n/W, V] of this rank's share of the tokens, from the columns [n, V/W] of all tokens."""
    received = torch.empty_like(logits)
    dist.all_to_all_single(received, logits, group=group)
    return received.view(world_size, -1, logits.shape[-1]).transpose(0, 1).flatten(1)


def _grad(
    logits: torch.Tensor, target: torch.Tensor, grad: torch.Tensor, top_k: int | None, top_p: float | None
) -> torch.Tensor:
    """Gradient [n, V], float32, for whole rows of logits; target and gradient are [n, 1]."""
    k = min(top_k, logits.shape[-1]) if top_k else 0
    if top_p is not None and top_p < 1:
        ordered, order = logits.sort(dim=-1)
        ordered = ordered.float()
        if k > 0:
            ordered = ordered.masked_fill(ordered < ordered[:, -k].unsqueeze(-1), -torch.inf)
        removed_in_order = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
        removed_in_order[:, -1] = False
        removed = torch.empty_like(removed_in_order).scatter_(-1, order, removed_in_order)
    elif k > 0:
        removed = logits < logits.topk(k, dim=-1).values[:, -1:]
    else:
        removed = torch.zeros_like(logits, dtype=torch.bool)
    probs = logits.float().masked_fill(removed, -torch.inf).softmax(dim=-1)
    at_target = grad.masked_fill(removed.gather(-1, target), 0.0)
    return probs.mul_(-grad).scatter_add_(-1, target, at_target)
