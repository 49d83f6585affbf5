"""One data-parallel training step: broadcast, forward, backward, gradient mean, Adam.

Each rank s of W holds `X_local` [n_s, d_in] and `y_local` [n_s, d_out]; n_s may differ by rank. The model is
o = relu(X W1^T + b1) W2^T + b2, with `W1` [h, d_in], `b1` [h], `W2` [d_out, h] and `b2` [d_out]; its moments are
`exp_avg_W1`, `exp_avg_b1`, `exp_avg_W2`, `exp_avg_b2` and `exp_avg_sq_W1`, `exp_avg_sq_b1`, `exp_avg_sq_W2`,
`exp_avg_sq_b2`, each in the shape of its parameter. Of these twelve the values of rank 0 count; what the other ranks
hold has the same shapes and is ignored. All tensors have one dtype.

L_s is the mean over the n_s d_out elements of (o - y)^2 on rank s, with the gradient of relu at 0 being 0, and
g = (1/W) sum_s grad L_s at rank 0's parameters: the mean of the ranks' means, also where the n_s differ. Adam, with
`lr`, `beta1`, `beta2`, `eps` and `step` >= 1 equal on all ranks, for each element: m' = beta1 m + (1 - beta1) g;
v' = beta2 v + (1 - beta2) g^2; p' = p - lr (m' / (1 - beta1^step)) / (sqrt(v' / (1 - beta2^step)) + eps).

Every rank returns twelve tensors: the new W1, b1, W2, b2, then the new exp_avg and the new exp_avg_sq of these four,
in the dtype of the inputs. All ranks return the same bits. Accumulate in float32; layer outputs, gradients, their sum
over ranks and every value within Adam may each be rounded to the dtype. The results do not alias the inputs, may share
storage with each other and may require gradients. All inputs stay as they were.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    X_local: torch.Tensor,
    y_local: torch.Tensor,
    W1: torch.Tensor,
    b1: torch.Tensor,
    W2: torch.Tensor,
    b2: torch.Tensor,
    exp_avg_W1: torch.Tensor,
    exp_avg_b1: torch.Tensor,
    exp_avg_W2: torch.Tensor,
    exp_avg_b2: torch.Tensor,
    exp_avg_sq_W1: torch.Tensor,
    exp_avg_sq_b1: torch.Tensor,
    exp_avg_sq_W2: torch.Tensor,
    exp_avg_sq_b2: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
) -> tuple[torch.Tensor, ...]:
    model = (W1, b1, W2, b2)
    parameters = _flat(model)
    exp_avg = _flat((exp_avg_W1, exp_avg_b1, exp_avg_W2, exp_avg_b2))
    exp_avg_sq = _flat((exp_avg_sq_W1, exp_avg_sq_b1, exp_avg_sq_W2, exp_avg_sq_b2))
    for state in (parameters, exp_avg, exp_avg_sq):
        dist.broadcast(state, src=0)

    leaves = [part.detach().requires_grad_() for part in _cut(parameters, model)]
    hidden = F.relu(F.linear(X_local, leaves[0], leaves[1]))
    loss = F.mse_loss(F.linear(hidden, leaves[2], leaves[3]), y_local)
    gradient = _flat(torch.autograd.grad(loss, leaves))
    dist.all_reduce(gradient, op=dist.ReduceOp.SUM)
    gradient.div_(dist.get_world_size())

    exp_avg.lerp_(gradient, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    root = exp_avg_sq.sqrt().div_((1 - beta2**step) ** 0.5).add_(eps)
    parameters.addcdiv_(exp_avg, root, value=-lr / (1 - beta1**step))
    return tuple(part for state in (parameters, exp_avg, exp_avg_sq) for part in _cut(state, model))


def _flat(tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def _cut(vector: torch.Tensor, shaped_like: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    parts = torch.split(vector, [tensor.numel() for tensor in shaped_like])
    return [part.view_as(tensor) for part, tensor in zip(parts, shaped_like, strict=True)]
