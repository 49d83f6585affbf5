"""Sinkhorn-Knopp centering of teacher scores over all ranks' samples.

Each rank of the group (W ranks, in group order) holds `teacher_output` [b, K], bf16 or fp32, the scores of its
samples for K prototypes, and `n_masked_patches_tensor` [1] int64, its count. b and the count may differ by rank and
be 0 on some; K and the dtype are equal on all ranks, and so are `teacher_temp` and `n_iterations` (0 is allowed). Over
the samples of all ranks, in float32: E = exp(teacher_output / teacher_temp), n = sum of all counts (n > 0),
Q = E / sum(E). n_iterations times: each column (prototype) is divided by its sum over all samples and by K, then each
row (sample) by its sum over all prototypes and by n. The result is n Q, the own rows of it, a new float32 tensor
[b, K] for either input dtype; after one iteration or more each row adds up to 1. |teacher_output / teacher_temp| is at
most 80. `group` None is the default group. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(
    teacher_output: torch.Tensor,
    teacher_temp: float,
    n_masked_patches_tensor: torch.Tensor,
    n_iterations: int = 3,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    Q = teacher_output.to(torch.float32, copy=True).div_(teacher_temp).exp_()
    # The mass and the count of all ranks travel together; float64 holds both.
    sums = torch.stack((Q.sum(dtype=torch.float64), n_masked_patches_tensor[0].double()))
    dist.all_reduce(sums, op=dist.ReduceOp.SUM, group=group)
    mass, n = sums.float().unbind()
    Q /= mass
    for _ in range(n_iterations):
        of_prototypes = Q.sum(dim=0)
        dist.all_reduce(of_prototypes, op=dist.ReduceOp.SUM, group=group)
        Q /= of_prototypes * Q.shape[1]
        Q /= Q.sum(dim=1, keepdim=True) * n
    return Q.mul_(n)
