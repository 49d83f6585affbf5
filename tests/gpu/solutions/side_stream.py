"""Does its work on a stream that nobody waits for."""

import torch
import torch.distributed as dist

_STREAM = None


def solution(tensor):
    global _STREAM
    _STREAM = _STREAM or torch.cuda.Stream()
    out = torch.empty_like(tensor)
    host = tensor.cpu()
    dist.all_reduce(host)
    total = host.to(tensor.device)
    torch.cuda.synchronize()
    with torch.cuda.stream(_STREAM):
        torch.cuda._sleep(20_000_000)
        out.copy_(total)
    return out
