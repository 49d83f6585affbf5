"""Gated FFT long convolution with sequence sharding.

C = `num_groups` `group_dim` channels, W ranks of the group in group order, L = W l positions. Each rank holds
`x1_seq`, `x2_seq` and `v_seq` [B, C, l], its positions of x1, x2 and v: where `with_zigzag_splitting` is true (l is
even then), chunks r and 2W - 1 - r, in this order, of the 2 W chunks of l / 2 positions; otherwise positions r l to
(r + 1) l - 1. `h` [num_groups, f] and `conv_bias` [C] are whole and equal on all ranks; f <= L, W divides num_groups.
Shapes and dtypes are equal on all ranks. In the order of the whole sequence

    z = x2 v, in the input dtype
    y[b, c, t] = conv_bias[c] z[b, c, t] + sum over u <= t, t - u < f of h[c // group_dim, t - u] z[b, c, u]
    out = x1 y, in the input dtype

where y is computed in float32, with h and conv_bias widened, and rounded to the input dtype. Each rank returns out at
its own positions, in its own order, channels last: a new contiguous tensor [B, l, C] in the input dtype. Transforms
and sums are in float32 (no TF32). `group` None is the default group. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(
    x1_seq: torch.Tensor,
    x2_seq: torch.Tensor,
    v_seq: torch.Tensor,
    h: torch.Tensor,
    conv_bias: torch.Tensor,
    num_groups: int,
    group_dim: int,
    group: dist.ProcessGroup | None = None,
    with_zigzag_splitting: bool = True,
) -> torch.Tensor:
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    batch, channels, length = x1_seq.shape
    # Gates are elementwise: only their product with the convolution has to travel.
    z = (x2_seq * v_seq).view(batch, world_size, channels // world_size, length).movedim(1, 0)
    pieces = _exchange(z, group)
    if with_zigzag_splitting:
        first, second = pieces.chunk(2, dim=-1)
        pieces = torch.cat((first, second.flip(0)))
    z = pieces.movedim(0, -2).reshape(batch, channels // world_size, -1)
    own = num_groups // world_size
    filters = h.narrow(0, rank * own, own).float()
    bias = conv_bias.view(num_groups, group_dim, 1).narrow(0, rank * own, own).float()
    y = _convolve(z.view(batch, own, group_dim, -1).float(), filters, bias).to(z.dtype).view_as(z)
    if with_zigzag_splitting:
        first, second = y.view(*y.shape[:2], 2, world_size, -1).unbind(2)
        y = torch.cat((first, second.flip(2)), dim=-1)
    else:
        y = y.view(*y.shape[:2], world_size, -1)
    received = _exchange(y.movedim(2, 0), group)
    return x1_seq.transpose(1, 2).contiguous() * received.permute(1, 3, 0, 2).reshape(batch, length, channels)


def _convolve(z: torch.Tensor, filters: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Causal convolution along the last dimension of z [B, groups, channels, L] with filters [groups, f]."""
    length = z.shape[-1]
    spectrum = torch.fft.rfft(z, n=2 * length) * torch.fft.rfft(filters, n=2 * length).unsqueeze(1)
    return torch.addcmul(torch.fft.irfft(spectrum, n=2 * length)[..., :length], bias, z)


def _exchange(parts: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Part s of the result is what rank s of the group had as the part for this rank."""
    sent = parts.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return received
