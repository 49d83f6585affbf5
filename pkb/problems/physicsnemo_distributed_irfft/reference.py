"""Inverse 2-D FFT to a real field, from a half spectrum cut by rows to a field cut by columns.

Each rank of the group (W ranks, in group order) holds `x`, complex64, its rows of a half spectrum: with `s` = (n0, n1)
and `dim` = (d0, d1) it has n0 / W rows along d0 and n1 // 2 + 1 columns along d1, which is the last axis; d0 is another
one. Either may be given as a negative number; other axes may stand before and between them. W divides n0 and n1. Let
X be the rows of all ranks joined along d0 in rank order, and, for w = 1 to n1 - 1 - n1 // 2 and all h,
X[h, n1 - w] = conj(X[(-h) mod n0, w]). Then for every place of the other axes

    y[a, b] = c Re(sum over h = 0 .. n0 - 1, w = 0 .. n1 - 1 of X[h, w] exp(2 pi i (h a / n0 + w b / n1)))

where c is (n0 n1)^-1/2 for `norm` "ortho", 1 / (n0 n1) for "backward", 1 for "forward". Columns 0 and n1 / 2 (n1 even)
are used as given, although they need not be Hermitian: what is not has no effect on y. Rank r returns columns
b = r n1 / W to (r + 1) n1 / W - 1 along d1 and all rows, axes in the order of x, in a new contiguous float32 tensor.
Compute in float32 (no TF32). `group` None is the default group. The input stays as it was.
"""

import torch
import torch.distributed as dist


def solution(
    x: torch.Tensor,
    s: tuple[int, int],
    dim: tuple[int, int],
    norm: str = "ortho",
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    world_size = dist.get_world_size(group)
    n1 = s[1]
    d0, d1 = (d % x.dim() for d in dim)
    # Under the real part a column and its mirrored conjugate count alike: twice the one stands for both.
    half = x.clone(memory_format=torch.contiguous_format)
    half.narrow(d1, 1, (n1 - 1) // 2).mul_(2)
    sent = torch.stack(torch.fft.ifft(half, n=n1, dim=d1, norm=norm).chunk(world_size, dim=d1)).contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    columns = torch.cat(received.unbind(), dim=d0)
    field: torch.Tensor = torch.fft.ifft(columns, dim=d0, norm=norm)
    return field.real.contiguous()
