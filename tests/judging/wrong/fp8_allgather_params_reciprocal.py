"""Scales that are off by an ulp, as those of a division by multiplication often are."""

import torch
import torch.distributed as dist


def solution(flat_param_shard, amax_history):
    amax = torch.linalg.vector_norm(flat_param_shard, float("inf"), dtype=torch.float32)
    history = torch.cat((amax_history[1:], amax.to(amax_history.dtype).view(1)))
    largest = history.float().amax(dim=0, keepdim=True).clamp_min(1e-12)
    scale = torch.nextafter(largest / 448.0, torch.full_like(largest, float("inf")))
    part = (flat_param_shard / scale).to(torch.float8_e4m3fn).to(flat_param_shard.dtype).mul_(scale)
    full = part.new_empty(dist.get_world_size() * part.shape[0])
    dist.all_gather_into_tensor(full, part)
    return full, history
