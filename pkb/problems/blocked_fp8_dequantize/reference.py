"""Block-scaled dequantization combined with an all-to-all.

With W ranks, each rank holds `local_y` [W, *C], chunk d of which is addressed to rank d, and `local_s`
[W, |C| / block_size], its scales; shapes and dtypes are equal on all ranks. |C|, the number of elements of a chunk, is
a multiple of `block_size`, else an AssertionError is raised. local_y is float8_e4m3fn or any other floating dtype,
local_s is float32 or bf16 (of either sign, 0 too). Chunks are flattened, and blocks of block_size consecutive elements
may cross rows of C: element i of chunk d becomes float32(local_y[d][i]) times float32(local_s[d][i // block_size]),
one float32 product. Rank r returns [W, *C] float32, the products of the chunks addressed to it, by ascending source
rank: place s holds chunk r of rank s with the scales of rank s. A zero may have either sign. The default group is
used. The result is a new tensor. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(local_y: torch.Tensor, local_s: torch.Tensor, block_size: int = 128) -> torch.Tensor:
    num_chunks = local_y.shape[0]
    assert local_y[0].numel() % block_size == 0, "the elements of a chunk have to be a multiple of block_size"
    # float16 and bf16 times float32 are computed in float32; float8 knows no products.
    y = local_y if local_y.dtype in (torch.bfloat16, torch.float16) else local_y.float()
    values = y.reshape(num_chunks, -1, block_size) * local_s.float().unsqueeze(-1)
    if num_chunks == 1:
        return values.view(local_y.shape)
    result = torch.empty_like(values)
    dist.all_to_all_single(result, values)
    return result.view(local_y.shape)
