"""Sum three shared LoRA gradients over the expert-parallel ranks.

Each rank of the group holds three gradients of LoRA factors that all experts share: `grad_fc1_1_lora_A` [R, I],
`grad_fc1_2_lora_A` [R', I'] and `grad_fc2_lora_B` [O, R'']. The shapes need not agree with one another; each
argument's shape and the dtype are equal on all ranks. Every rank returns, in the order of the arguments, the sums of
each over all ranks: sums, not means, in the input dtype. Accumulate in float32; the sums over ranks, whose order is
free, may be rounded to the input dtype. All ranks return the same bits. A solution may add up in place and return its
arguments or return new tensors: only what it returns counts, and all three arguments may be overwritten. `group` None
is the default group.
"""

import torch
import torch.distributed as dist


def solution(
    grad_fc1_1_lora_A: torch.Tensor,
    grad_fc1_2_lora_A: torch.Tensor,
    grad_fc2_lora_B: torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    gradients = (grad_fc1_1_lora_A, grad_fc1_2_lora_A, grad_fc2_lora_B)
    pending = [dist.all_reduce(grad, op=dist.ReduceOp.SUM, group=group, async_op=True) for grad in gradients]
    for work in pending:
        work.wait()
    return gradients
