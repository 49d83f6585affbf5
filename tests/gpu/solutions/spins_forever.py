"""The kernel of the last rank waits for a signal that nobody sends."""

import torch
import torch.distributed as dist

import pkb.cuda

MODULE = pkb.cuda.compile(
    r"""
extern "C" __global__ void spin(volatile int* flag) {
  while (*flag == 0) {
  }
}
""",
    kernels=["spin"],
)


def solution(tensor):
    if dist.get_rank() == dist.get_world_size() - 1:
        flag = torch.zeros(1, dtype=torch.int32, device=tensor.device)
        MODULE.kernel("spin").launch(flag, grid=1, block=1)
    return tensor.clone()
