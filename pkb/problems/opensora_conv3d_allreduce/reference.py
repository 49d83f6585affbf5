"""3-D convolution, input channels over ranks, all-reduce of partial sums.

Each rank of the group (W ranks, in group order) holds `input` [B, C/W, T, H, Wd], its channels of the input, and
`weight` [O, C/W/groups, kt, kh, kw], the part of the filters that belongs to them; shapes and dtypes are equal on all
ranks. `stride`, `padding` and `dilation` are numbers or triples (t, h, w), `groups` divides C/W and O: groups are
made within each rank's channels, as torch's conv3d does for that rank alone. The result is the sum over all ranks of
conv3d(input, weight) with padding by zeros, plus `bias` [O], added once: the rank's own bias, which may differ by rank,
or None. So every rank returns the whole sum in a new tensor [B, O, T', H', W'] of the input dtype. Accumulate in
float32; the partial sums of a rank may be rounded to the input dtype before they are added, in any order. `group` None
is the default group. All inputs stay as they were.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: int | tuple[int, int, int],
    padding: int | tuple[int, int, int],
    dilation: int | tuple[int, int, int],
    groups: int = 1,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    result = F.conv3d(input, weight, None, stride, padding, dilation, groups)
    dist.all_reduce(result, op=dist.ReduceOp.SUM, group=group)
    if bias is not None:
        result += bias.view(1, -1, 1, 1, 1)
    return result
