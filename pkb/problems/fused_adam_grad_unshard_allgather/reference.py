"""Adam on a shard, fused with the all-gather of the new weights.

Each rank holds four vectors [p] for its shard: `grad_shard`, the gradient; `master_shard`, the weights; and the moments
`exp_avg` and `exp_avg_sq`. p and the dtype are equal on all ranks, p may be odd. Adam, with `lr`, `beta1`, `beta2`,
`eps` and `step` >= 1 equal on all ranks, for each element: m' = beta1 m + (1 - beta1) g;
v' = beta2 v + (1 - beta2) g^2; w' = w - lr (m' / (1 - beta1^step)) / (sqrt(v' / (1 - beta2^step)) + eps).
Where g, m and v are all 0 the weight stays as it was.

Every rank returns the new weights of ranks 0 to W - 1, joined in this order: a new tensor [W p] in the dtype of
`master_shard`. The new moments are not returned. Compute in float32; every value within Adam may be rounded to the
dtype. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(
    grad_shard: torch.Tensor,
    master_shard: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
) -> torch.Tensor:
    m = torch.lerp(exp_avg, grad_shard, 1 - beta1)
    v = (exp_avg_sq * beta2).addcmul_(grad_shard, grad_shard, value=1 - beta2)
    root = v.sqrt_().div_((1 - beta2**step) ** 0.5).add_(eps)
    new = torch.addcdiv(master_shard, m, root, value=-lr / (1 - beta1**step))
    result = new.new_empty(dist.get_world_size() * new.numel())
    dist.all_gather_into_tensor(result, new)
    return result
