"""ZeRO-1 step: optimizer state sharded, gradient all-reduced.

Each rank s of W holds `X_local` [n_s, d_in] and `y_local` [n_s, d_out]; n_s may differ by rank. The model is
o = relu(X W1^T + b1) W2^T + b2, with `W1` [h, d_in], `b1` [h], `W2` [d_out, h] and `b2` [d_out]. Of these four the
values of rank 0 count; what the other ranks hold has the same shapes and is ignored. All tensors have one dtype.

L_s is the mean over the n_s d_out elements of (o - y)^2 on rank s, with the gradient of relu at 0 being 0, and
g = (1/W) sum_s grad L_s at rank 0's parameters: the mean of the ranks' means, also where the n_s differ. Parameters and
g are flat vectors of P elements: W1 row by row, b1, W2 row by row, b2. P is a multiple of W, and slice r, elements
r P/W to (r+1) P/W - 1, belongs to rank r: its bounds fall inside tensors and inside rows. Rank r holds the moments
`exp_avg_part` and `exp_avg_sq_part` [P/W] of its slice.

Adam, with `lr`, `beta1`, `beta2`, `eps` and `step` >= 1 equal on all ranks, for each element of a slice with its
owner's moments: m' = beta1 m + (1 - beta1) g; v' = beta2 v + (1 - beta2) g^2;
p' = p - lr (m' / (1 - beta1^step)) / (sqrt(v' / (1 - beta2^step)) + eps).

Every rank returns the new W1, b1, W2, b2, complete and with the same bits on all ranks, and the new exp_avg_part and
exp_avg_sq_part of its own slice, in the dtype of the inputs. Accumulate in float32; layer outputs, gradients, their sum
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
    exp_avg_part: torch.Tensor,
    exp_avg_sq_part: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
) -> tuple[torch.Tensor, ...]:
    world_size, rank = dist.get_world_size(), dist.get_rank()
    model = (W1, b1, W2, b2)
    parameters = _flat(model)
    assert parameters.numel() % world_size == 0, "the number of parameters must be a multiple of the world size"
    dist.broadcast(parameters, src=0)

    leaves = [part.detach().requires_grad_() for part in _cut(parameters, model)]
    hidden = F.relu(F.linear(X_local, leaves[0], leaves[1]))
    loss = F.mse_loss(F.linear(hidden, leaves[2], leaves[3]), y_local)
    gradient = _flat(torch.autograd.grad(loss, leaves))
    dist.all_reduce(gradient, op=dist.ReduceOp.SUM)
    g = gradient.chunk(world_size)[rank].div(world_size)

    exp_avg = torch.lerp(exp_avg_part, g, 1 - beta1)
    exp_avg_sq = (exp_avg_sq_part * beta2).addcmul_(g, g, value=1 - beta2)
    root = exp_avg_sq.sqrt().div_((1 - beta2**step) ** 0.5).add_(eps)
    part = torch.addcdiv(parameters.chunk(world_size)[rank], exp_avg, root, value=-lr / (1 - beta1**step))
    dist.all_gather_into_tensor(parameters, part)
    return (*_cut(parameters, model), exp_avg, exp_avg_sq)


def _flat(tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def _cut(vector: torch.Tensor, shaped_like: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    parts = torch.split(vector, [tensor.numel() for tensor in shaped_like])
    return [part.view_as(tensor) for part, tensor in zip(parts, shaped_like, strict=True)]
