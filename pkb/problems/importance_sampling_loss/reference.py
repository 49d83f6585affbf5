"""Importance-sampled policy-gradient loss over a data-parallel batch, with five global statistics.

Each rank holds its own tokens, at least one, and its own `weight` [V, H] (replicas in practice; do not rely on it):
`hidden_states` [..., H], `labels` [...] int64, `old_logprobs` [...] and `advantages` [...], where ... is one or two
dimensions, those of labels. All floating tensors are of one dtype. A token is valid when its label is not
`ignore_index`, which may be a class like any other; the labels of valid tokens are in [0, V).

logits = hidden_states weight^T; ce = logsumexp(logits) - logits[label]; new = -ce; delta = clamp(new - old_logprobs,
-20, 20); rho = exp(delta); pg = -rho advantages. At invalid tokens new and pg are exactly 0, whatever the inputs are,
and they enter no sum, minimum or maximum. With sums, minimum and maximum over the valid tokens of ALL ranks and n =
max(1, their number), every rank returns (loss, None, per_token_logprobs, per_token_loss, metrics), new tensors:
loss = sum pg / n, scalar float32; per_token_logprobs = new and per_token_loss = pg of its own tokens, in the shape of
labels and the dtype of hidden_states; metrics [5] float32 = [sum rho / n, min rho, max rho, sum (rho - delta - 1) /
n, sum ce / n]. A rank without valid tokens contributes nothing and returns the same loss and metrics as the others;
with no valid token anywhere, the loss is 0 and metrics is [0, +inf, -inf, 0, 0]. Accumulate in float32; logits and ce
may be rounded to the dtype of hidden_states. Forward only. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    ignore_index: int = -100,
) -> tuple[torch.Tensor, None, torch.Tensor, torch.Tensor, torch.Tensor]:
    invalid = labels == ignore_index
    # Normalized in float32 without a float32 copy of the logits.
    log_probs = (hidden_states @ weight.t()).log_softmax(dim=-1, dtype=torch.float32)
    new = log_probs.gather(-1, labels.masked_fill(invalid, 0).unsqueeze(-1)).squeeze(-1).masked_fill(invalid, 0.0)

    delta = (new - old_logprobs.float()).clamp(-20.0, 20.0)
    rho = delta.exp()
    pg = (-rho * advantages.float()).masked_fill(invalid, 0.0)
    gap = (rho - delta - 1.0).masked_fill(invalid, 0.0)
    num_valid = (~invalid).sum(dtype=torch.float32)
    sums = torch.stack((num_valid, pg.sum(), rho.masked_fill(invalid, 0.0).sum(), gap.sum(), -new.sum()))
    # The minimum travels as the maximum of the negative, so that one collective serves both.
    extremes = torch.stack(((-rho).masked_fill(invalid, -torch.inf).max(), rho.masked_fill(invalid, -torch.inf).max()))
    dist.all_reduce(sums, op=dist.ReduceOp.SUM)
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX)

    loss, mean_rho, mean_gap, mean_ce = (sums[1:] / sums[0].clamp_min(1.0)).unbind()
    metrics = torch.stack((mean_rho, -extremes[0], extremes[1], mean_gap, mean_ce))
    return loss, None, new.to(hidden_states.dtype), pg.to(hidden_states.dtype), metrics
