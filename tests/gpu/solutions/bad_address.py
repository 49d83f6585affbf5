"""Writes through a pointer that is none."""

import pkb.cuda

MODULE = pkb.cuda.compile(
    r"""
extern "C" __global__ void poke(int* address) { *address = 1; }
""",
    kernels=["poke"],
)


def solution(tensor):
    MODULE.kernel("poke").launch(0xDEAD0000, grid=1, block=1)
    return tensor.clone()
