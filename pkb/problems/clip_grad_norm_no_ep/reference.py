"""Global gradient norm over sharded gradients, and clipping in place.

Each rank holds `grad_tensors`, its shards of the gradients: a list of tensors of one floating dtype, in which None
may stand for a gradient that does not exist. Number, shapes and total size may differ by rank, and a list may be
empty or hold nothing but None; such a rank counts 0.

p = `norm_type` is finite and at least 1; `max_norm` > 0. total = (sum over the ranks of `fsdp_group`, their tensors
and all elements of |g|^p)^(1/p), accumulated in float32. If total > max_norm, every gradient is overwritten in place
by g (max_norm / total), rounded to its dtype; the factor is float32 or rounded to that dtype first, and nothing is
added to total. Otherwise the gradients keep all their bits. Returns total, the norm BEFORE clipping, a new scalar
tensor in float32, equal on all ranks of the group. `fsdp_group` None means no communication at all: total is then
the norm of the rank's own gradients.
"""

import torch
import torch.distributed as dist


def solution(
    grad_tensors: list[torch.Tensor | None],
    max_norm: float,
    norm_type: float = 2.0,
    fsdp_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    grads = [grad for grad in grad_tensors if grad is not None]
    if grads:
        total = torch.stack(torch._foreach_norm(grads, norm_type, dtype=torch.float32)).pow(norm_type).sum()
    else:
        total = torch.zeros((), device=_device())
    if fsdp_group is not None:
        dist.all_reduce(total, op=dist.ReduceOp.SUM, group=fsdp_group)
    total = total.pow(1.0 / norm_type)
    if grads:
        # A factor of 1 leaves every bit alone, and nobody has to ask the device whether to clip.
        factor = (max_norm / total).clamp(max=1.0)
        torch._foreach_mul_(grads, factor.to(grads[0].dtype))
    return total


def _device() -> torch.device:
    """Where a rank without gradients takes part: on the GPU that its process has in use, if there is one."""
    has_gpu = torch.cuda.is_initialized()
    return torch.device("cuda", torch.cuda.current_device()) if has_gpu else torch.device("cpu")
