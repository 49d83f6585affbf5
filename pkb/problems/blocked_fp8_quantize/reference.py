"""Block-scaled FP8 quantization, then gather of codes and scales.

Each rank holds `local_tensor` [..., N], bf16 or fp32, finite, of the same shape and dtype on all W ranks; N is a
multiple of `block_size`, else an AssertionError is raised. A block is block_size consecutive elements of the last
dimension. Per block, in float32: s = max|x| / 448, s' = 1 if s = 0 else s, code = x / s' rounded to float8_e4m3fn,
to nearest, ties to even; a quotient a few ulp above 448 gives 448, a zero may have either sign. Every rank returns
the pair (y, s) of all ranks' codes and scales, joined along dim 0 in rank order: y [W T, ..., N] float8_e4m3fn and
s [W T, ..., N / block_size] float32 for local_tensor [T, ..., N] (y [W N] and s [W N / block_size] for one
dimension). s is the scale itself: 0 for a block of zeros. Value = code times scale. The default group is used; where
there is none, W = 1. The results are new tensors. The input stays as it was.
"""

import torch
import torch.distributed as dist


def solution(local_tensor: torch.Tensor, block_size: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    assert local_tensor.shape[-1] % block_size == 0, "the last dimension has to be a multiple of block_size"
    blocks = local_tensor.view(*local_tensor.shape[:-1], -1, block_size)
    largest = torch.linalg.vector_norm(blocks, float("inf"), dim=-1, dtype=torch.float32)
    # Division by a Python number would be a multiplication by its reciprocal on a GPU.
    scales = largest / torch.full_like(largest, 448.0)
    divisors = torch.where(scales == 0, 1.0, scales)
    # bf16 over float32 is computed in float32.
    codes = (blocks / divisors.unsqueeze(-1)).to(torch.float8_e4m3fn).view(local_tensor.shape)
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return codes, scales
    return _gathered(codes.view(torch.uint8)).view(torch.float8_e4m3fn), _gathered(scales)


def _gathered(part: torch.Tensor) -> torch.Tensor:
    """All ranks' parts joined along dim 0."""
    result = part.new_empty((dist.get_world_size() * part.shape[0], *part.shape[1:]))
    dist.all_gather_into_tensor(result, part)
    return result
