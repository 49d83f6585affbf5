"""Adam on the shard, then an all-gather of the new weights."""

import torch.distributed as dist


def solution(grad_shard, master_shard, exp_avg, exp_avg_sq, lr, beta1, beta2, eps, step):
    grad, weight = grad_shard.float(), master_shard.float()
    first = beta1 * exp_avg.float() + (1 - beta1) * grad
    second = beta2 * exp_avg_sq.float() + (1 - beta2) * grad.square()
    root = (second / (1 - beta2**step)).sqrt() + eps
    new = (weight - lr * (first / (1 - beta1**step)) / root).to(master_shard.dtype)
    result = new.new_empty(dist.get_world_size() * new.numel())
    dist.all_gather_into_tensor(result, new)
    return result
