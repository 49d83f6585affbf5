"""Gradient clipping with separate groups for dense and expert gradients.

Each rank holds `non_ep_grad_tensors`, its shards of the dense gradients, and `ep_grad_tensors`, those of its experts:
lists of tensors, all of one floating dtype, in which None may stand for a gradient that does not exist. Number, shapes
and total size may differ by rank; either list may be empty or hold nothing but None.

Layout: rank = b `ep_size` + k, with ep_size a power of two. `fsdp_group` holds all ranks, `ep_group` those of equal
b, `ep_fsdp_group` those of equal k. With ep_size = 1, ep_group is None and ep_fsdp_group holds all ranks. Any group
may also be None, which means no sum over it. p = `norm_type` is finite and at least 1; `max_norm` > 0.

1. If ep_size > 1, every expert gradient is divided by ep_size in place, rounded to its dtype: also if nothing gets
clipped. 2. D = sum of |g|^p over the dense gradients, then over the ranks of fsdp_group; E = the same over the divided
expert gradients, then over ep_fsdp_group, and that sum then over ep_group; all in float32. 3. total = (D +
E)^(1/p). 4. If total > max_norm, every gradient of both lists is overwritten in place by g (max_norm / total),
rounded to its dtype; the factor is float32 or rounded to that dtype first, and nothing is added to total. Otherwise
the gradients stay as they are after step 1, bit by bit. Returns total, the norm BEFORE clipping, a new scalar tensor
in float32.
"""

import torch
import torch.distributed as dist

Group = dist.ProcessGroup | None


def solution(
    non_ep_grad_tensors: list[torch.Tensor | None],
    ep_grad_tensors: list[torch.Tensor | None],
    max_norm: float,
    norm_type: float = 2.0,
    ep_size: int = 1,
    fsdp_group: dist.ProcessGroup | None = None,
    ep_fsdp_group: dist.ProcessGroup | None = None,
    ep_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    dense = [grad for grad in non_ep_grad_tensors if grad is not None]
    expert = [grad for grad in ep_grad_tensors if grad is not None]
    if ep_size > 1 and expert:
        torch._foreach_mul_(expert, 1.0 / ep_size)

    grads = dense + expert
    device = grads[0].device if grads else _device()
    dense_sum = _power_sum(dense, norm_type, device, (fsdp_group,))
    expert_sum = _power_sum(expert, norm_type, device, (ep_fsdp_group, ep_group))
    total = (dense_sum + expert_sum).pow(1.0 / norm_type)
    if grads:
        # A factor of 1 leaves every bit alone, and nobody has to ask the device whether to clip.
        factor = (max_norm / total).clamp(max=1.0)
        torch._foreach_mul_(grads, factor.to(grads[0].dtype))
    return total


def _power_sum(grads: list[torch.Tensor], p: float, device: torch.device, groups: tuple[Group, ...]) -> torch.Tensor:
    """Sum of |g|^p over the tensors, then over the groups one after the other."""
    if grads:
        total = torch.stack(torch._foreach_norm(grads, p, dtype=torch.float32)).pow(p).sum()
    else:
        total = torch.zeros((), device=device)
    for group in groups:
        if group is not None:
            dist.all_reduce(total, op=dist.ReduceOp.SUM, group=group)
    return total


def _device() -> torch.device:
    """Where a rank without gradients takes part: on the GPU that its process has in use, if there is one."""
    has_gpu = torch.cuda.is_initialized()
    return torch.device("cuda", torch.cuda.current_device()) if has_gpu else torch.device("cpu")
