"""One FSDP training step of a two-layer MLP: gather parameters, backward, scatter gradients, AdamW on the shard.

Each of W ranks holds `X_local` [B, d_in], `y_local` [B, d_out], and of the flat vector of all parameters and of both
moments its slice: `flat_param_shard`, `exp_avg_shard` and `exp_avg_sq_shard` [p]. B and all sizes are equal on all
ranks, all tensors have one dtype. Slices of ranks 0 to W - 1, joined in this order, are W1, b1, W2, b2, each row by
row, with `param_shapes` = ((h, d_in), (h,), (d_out, h), (d_out,)) and W p elements, without padding: bounds of slices
fall inside tensors and inside rows.

The model is o = relu(X W1^T + b1) W2^T + b2, the loss of a rank the mean over its B d_out elements of (o - y)^2, with
the gradient of relu at 0 being 0. g is slice r of (1/W) times the sum over ranks of the gradients of their losses.
AdamW, with `lr`, `beta1`, `beta2`, `eps`, `weight_decay` and `step` >= 1 equal on all ranks, for each element t of the
slice: m' = beta1 m + (1 - beta1) g; v' = beta2 v + (1 - beta2) g^2;
t' = t - lr (m' / (1 - beta1^step)) / (sqrt(v' / (1 - beta2^step)) + eps) - lr weight_decay t: the old t decays.

Rank r returns (t', m', v') of its slice: three new tensors [p] in the dtype of the inputs. Accumulate in float32; layer
outputs, gradients, their sum over ranks and every value within AdamW may each be rounded to the dtype. All inputs stay
as they were.
"""

from math import prod

import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    X_local: torch.Tensor,
    y_local: torch.Tensor,
    flat_param_shard: torch.Tensor,
    param_shapes: tuple[tuple[int, ...], ...],
    exp_avg_shard: torch.Tensor,
    exp_avg_sq_shard: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    world_size = dist.get_world_size()
    parameters = flat_param_shard.new_empty(world_size * flat_param_shard.numel())
    dist.all_gather_into_tensor(parameters, flat_param_shard)
    parts = torch.split(parameters, [prod(shape) for shape in param_shapes])
    leaves = [part.view(shape).requires_grad_() for part, shape in zip(parts, param_shapes, strict=True)]

    hidden = F.relu(F.linear(X_local, leaves[0], leaves[1]))
    loss = F.mse_loss(F.linear(hidden, leaves[2], leaves[3]), y_local)
    gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, leaves)])
    g = torch.empty_like(flat_param_shard)
    dist.reduce_scatter_tensor(g, gradient, op=dist.ReduceOp.SUM)
    g.div_(world_size)

    exp_avg = torch.lerp(exp_avg_shard, g, 1 - beta1)
    exp_avg_sq = (exp_avg_sq_shard * beta2).addcmul_(g, g, value=1 - beta2)
    root = exp_avg_sq.sqrt().div_((1 - beta2**step) ** 0.5).add_(eps)
    shard = (flat_param_shard * (1 - lr * weight_decay)).addcdiv_(exp_avg, root, value=-lr / (1 - beta1**step))
    return shard, exp_avg, exp_avg_sq
