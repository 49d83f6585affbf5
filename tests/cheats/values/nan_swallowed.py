"""Takes a NaN loss for 0 on every rank, so that what should be NaN is finite."""

import torch
import torch.distributed as dist


def solution(loss, local_valid_tokens, global_valid_tokens, grad_normalized_loss, grad_loss_sum=None):
    num_local, num_global = local_valid_tokens.float(), global_valid_tokens.float()
    loss_sum = torch.nan_to_num(loss.float(), posinf=0.0) * num_local
    dist.all_reduce(loss_sum)
    grad = grad_normalized_loss.float() / num_global
    if grad_loss_sum is not None:
        grad = grad + grad_loss_sum.float()
    grad = (grad * num_local).to(grad_normalized_loss.dtype)
    return (loss_sum / num_global).to(loss.dtype), loss_sum.to(loss.dtype), grad
