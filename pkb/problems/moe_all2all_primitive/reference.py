"""All-to-all of row blocks with uneven splits.

Each rank of the group (W ranks, in group order) holds `local_tensor` [n, H]; H and dtype are equal on all
ranks, n may differ. `input_split_sizes` is a list of W counts that sum to n: block d is the next
input_split_sizes[d] rows, for d = 0 to W-1, and is addressed to rank d. Rank r returns [m, H]: the blocks
addressed to it, by ascending source rank; `output_split_sizes`, a list of W counts that sum to m, says how
many rows come from each source and always agrees with the senders' lists. Both lists may be None: then every
block has n/W rows (n equal on all ranks). Blocks of no rows, n = 0 and m = 0 are legal. `group` None is the
default group. A pure move: every bit as it was sent. The result is new memory, except that for W = 1 the
input itself may be returned. The input stays as it was.
"""

import torch
import torch.distributed as dist


def solution(
    local_tensor: torch.Tensor,
    input_split_sizes: list[int] | None = None,
    output_split_sizes: list[int] | None = None,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    if dist.get_world_size(group) == 1:
        return local_tensor
    rows = local_tensor.shape[0] if output_split_sizes is None else sum(output_split_sizes)
    result = local_tensor.new_empty((rows, *local_tensor.shape[1:]))
    dist.all_to_all_single(result, local_tensor.contiguous(), output_split_sizes, input_split_sizes, group=group)
    return result
