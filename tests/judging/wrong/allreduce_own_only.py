"""Does not communicate: every rank returns its own tensor."""


def solution(tensor):
    return tensor.clone()
