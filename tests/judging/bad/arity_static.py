"""Takes two arguments, the problem passes one."""


def solution(tensor, group):
    return tensor
