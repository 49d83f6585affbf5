"""Token-weighted loss over all ranks, forward and backward.

Each rank s of W holds `loss`, a scalar tensor, its mean loss over n_s = `local_valid_tokens` tokens, and N =
`global_valid_tokens`, equal on all ranks and greater than 0; both counts are scalar int64 tensors on the device, 0
<= n_s < 2^24. `grad_normalized_loss` and `grad_loss_sum` are scalar tensors, the gradients of this rank with respect
to the first two results; grad_loss_sum may be None, which stands for 0.

Returns (normalized_loss, loss_sum, grad_loss), new scalar tensors: loss_sum = sum over all ranks of loss_s n_s,
where a rank with n_s = 0 contributes 0 even if its loss is NaN or infinite, while a NaN loss with n_s > 0 makes the
sum NaN on all ranks; normalized_loss = loss_sum / N; grad_loss = grad_normalized_loss n_r / N + grad_loss_sum n_r on
rank r, from its own gradients. The first two have the dtype of loss, grad_loss that of grad_normalized_loss. Compute
in float32 and round at the end; rounding each step to the dtype is permitted. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(
    loss: torch.Tensor,
    local_valid_tokens: torch.Tensor,
    global_valid_tokens: torch.Tensor,
    grad_normalized_loss: torch.Tensor,
    grad_loss_sum: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    num_local, num_global = local_valid_tokens.float(), global_valid_tokens.float()
    # Chosen on the device: a product with 0 would keep a NaN, and asking the host would wait for it.
    loss_sum = torch.where(local_valid_tokens > 0, loss.float() * num_local, 0.0)
    dist.all_reduce(loss_sum, op=dist.ReduceOp.SUM)
    grad_loss = grad_normalized_loss.float() / num_global
    if grad_loss_sum is not None:
        grad_loss = grad_loss + grad_loss_sum.float()
    grad_loss = (grad_loss * num_local).to(grad_normalized_loss.dtype)
    return (loss_sum / num_global).to(loss.dtype), loss_sum.to(loss.dtype), grad_loss
