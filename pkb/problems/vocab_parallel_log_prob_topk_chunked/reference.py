"""Log-probability of target tokens after top-k and top-p filtering, vocabulary split over ranks, in chunks.

With W ranks in the group and V classes, rank r holds `vocab_parallel_logits` [B, S, V/W], columns r V/W to (r+1) V/W
- 1 of the logits x, and `target` [B, S] int64, equal on all ranks, with global class ids 0 <= target < V. The
flattened tokens (row-major over B and S) are meant to be taken B max(1, `chunk_size`) at a time, the last time
perhaps fewer; the result does not depend on it, it only bounds the memory. ValueError if W does not divide B S or B
max(1, chunk_size).

Filter, in float32 on the given logits. If `top_k` is not None and greater than 0: k = min(top_k, V), tau = the k-th
largest logit of the row, logits >= tau are kept (all that equal tau stay). Then, if `top_p` is not None and less than
1: with p the softmax over what top-k kept, a token stays if the sum of the p ranked above it is < top_p, or if it is
the first; that is, in ascending order, where the inclusive running sum is > 1 - top_p, and always the last. Of equal
logits, those that are cut off may be any.

Every rank returns the same new tensor [B, S] in float32: x[target] - logsumexp(kept x), or -inf where the target was
removed. `tp_group` None is the default group. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(
    vocab_parallel_logits: torch.Tensor,
    target: torch.Tensor,
    tp_group: dist.ProcessGroup | None = None,
    top_k: int | None = None,
    top_p: float | None = 1.0,
    chunk_size: int = 1,
) -> torch.Tensor:
    world_size, rank = dist.get_world_size(tp_group), dist.get_rank(tp_group)
    num_tokens, per_chunk = target.numel(), target.shape[0] * max(1, chunk_size)
    if num_tokens % world_size or per_chunk % world_size:
        raise ValueError(f"{world_size} ranks do not divide {num_tokens} tokens in chunks of {per_chunk}.")
    result = torch.empty(num_tokens, dtype=torch.float32, device=target.device)
    chunks = (
        torch.split(tensor, per_chunk) for tensor in (vocab_parallel_logits.flatten(0, 1), target.flatten(), result)
    )
    for local, chunk_target, chunk_result in zip(*chunks, strict=True):
        logits = _token_shard(local, world_size, tp_group)
        own = _log_probs(logits, chunk_target.chunk(world_size)[rank], top_k, top_p)
        dist.all_gather_into_tensor(chunk_result, own, group=tp_group)
    return result.view(target.shape)


def _token_shard(logits: torch.Tensor, world_size: int, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Whole rows [n/W, V] of this rank's share of the tokens, from the columns [n, V/W] of all tokens."""
    received = torch.empty_like(logits)
    dist.all_to_all_single(received, logits, group=group)
    return received.view(world_size, -1, logits.shape[-1]).transpose(0, 1).flatten(1)


def _log_probs(logits: torch.Tensor, target: torch.Tensor, top_k: int | None, top_p: float | None) -> torch.Tensor:
    """Log-probabilities of the targets [n] after the filter, float32, for whole rows of logits [n, V]."""
    k = min(top_k, logits.shape[-1]) if top_k else 0
    target_logit = logits.gather(-1, target.unsqueeze(-1)).float()
    if top_p is not None and top_p < 1:
        kept = logits.sort(dim=-1).values.float()
        if k > 0:
            kept = kept.masked_fill(kept < kept[:, -k].unsqueeze(-1), -torch.inf)
        removed = kept.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
        removed[:, -1] = False
        cut = kept.gather(-1, removed.sum(dim=-1, keepdim=True))
        kept = kept.masked_fill(removed, -torch.inf)
    elif k > 0:
        cut = logits.topk(k, dim=-1).values[:, -1:]
        kept = logits.masked_fill(logits < cut, -torch.inf).float()
    else:
        cut, kept = target_logit, logits.float()
    log_probs = target_logit - kept.logsumexp(dim=-1, keepdim=True)
    return log_probs.masked_fill(target_logit < cut, -torch.inf).squeeze(-1)
