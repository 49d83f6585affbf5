"""Discrete-continuous convolution on the sphere, grid cut over latitude and longitude ranks.

Ranks form a grid: rank (p, a) is the p-th of the P ranks of its `polar_group` and the a-th of the A ranks of its
`azimuth_group` (None is the default group). A cut of n into k pieces has ceil(n / k) in all pieces but the last and
the rest in the last; where that leaves nothing for the last, floor(n / k) in all but the last and the rest in the
last. Latitudes are cut over the polar group, longitudes over the azimuth group. Rank (p, a) holds, in float32,

- `x` [B, C, lat_p, lon_a]: its cut of nlat latitudes and `nlon_in` longitudes;
- `psi`, sparse COO, coalesced, [K, nlat_out, lat_p nlon_in]: column i nlon_in + j of it is the filter's entry at its
  local latitude i and longitude j; equal on all ranks of an azimuth group; may have no entries at all;
- `weight` [O, C / `groups`, K] and `bias` [O] or None: equal everywhere.

A divides C, nlon_in and `nlon_out`; nlon_out divides nlon_in; groups divides C and O. Let step = nlon_in / nlon_out,
and join x and psi over all latitudes and longitudes:

    y[b, c, k, o, m] = sum over latitudes i, longitudes j of psi[k, o, i, j] x[b, c, i, (j + step m) mod nlon_in]
    z[b, q, o, m] = bias[q] + sum over c in its group, k of weight[q, c - C g / groups, k] y[b, c, k, o, m]

where output channel q is in group g = q groups // O, which has channels g C / groups to (g + 1) C / groups - 1.
Rank (p, a) returns its cut of z over nlat_out latitudes and nlon_out longitudes, [B, O, lat_out_p, nlon_out / A], a new
float32 tensor. Compute in float32 (no TF32). All inputs stay as they were.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    x: torch.Tensor,
    psi: torch.Tensor,
    weight: torch.Tensor,
    groups: int,
    nlon_out: int,
    nlon_in: int,
    azimuth_group: dist.ProcessGroup | None = None,
    polar_group: dist.ProcessGroup | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    batch, channels, num_lat, _ = x.shape
    azimuth, polar = dist.get_world_size(azimuth_group), dist.get_world_size(polar_group)
    # [A, B, C / A, lat, lon_a]: my channels, longitudes of all ranks.
    mine = _exchange(x.view(batch, azimuth, channels // azimuth, num_lat, -1).movedim(1, 0), azimuth_group)
    table = mine.permute(3, 0, 4, 1, 2).reshape(num_lat * nlon_in, -1)
    y = _convolve(table, psi, nlon_out, nlon_in)
    if polar > 1:
        cuts = _cut(y.shape[0], polar)
        num_out = cuts[dist.get_rank(polar_group)]
        parts = y.new_empty(polar, num_out, *y.shape[1:])
        dist.all_to_all_single(parts.view(-1, *y.shape[1:]), y, [num_out] * polar, cuts, group=polar_group)
        y = parts.sum(dim=0)
    # [lat_out, A, lon_out / A, K, B, C / A]: my longitudes, channels of all ranks.
    split = y.view(y.shape[0], azimuth, -1, weight.shape[2], batch, channels // azimuth)
    joined = _exchange(split.movedim(1, 0), azimuth_group).movedim(0, -2)
    grouped = joined.reshape(*joined.shape[:4], groups, -1)
    z = torch.einsum("lmkbgc,gqck->bgqlm", grouped, weight.view(groups, -1, *weight.shape[1:])).flatten(1, 2)
    return z.contiguous() if bias is None else z + bias.view(-1, 1, 1)


def _convolve(table: torch.Tensor, psi: torch.Tensor, nlon_out: int, nlon_in: int) -> torch.Tensor:
    """Own latitudes' part of y, [nlat_out, nlon_out, K, B C / A], from x as [lat nlon_in, B C / A]."""
    num_kernels, nlat_out, _ = psi.shape
    (kernel, out, column), value = psi.indices(), psi.values()
    shift = (nlon_in // nlon_out) * torch.arange(nlon_out, device=table.device).unsqueeze(1)
    # For every output longitude, one after the other, all entries of psi with their longitudes moved.
    index = column - column % nlon_in + (column + shift) % nlon_in
    ends = torch.arange(num_kernels * nlat_out, device=table.device)
    first = torch.searchsorted(kernel * nlat_out + out, ends) + len(value) * torch.arange(
        nlon_out, device=table.device
    ).unsqueeze(1)
    weights = value.expand(nlon_out, -1).flatten()
    y = F.embedding_bag(index.flatten(), table, first.flatten(), mode="sum", per_sample_weights=weights)
    return y.view(nlon_out, num_kernels, nlat_out, -1).permute(2, 0, 1, 3).contiguous()


def _exchange(parts: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Part s of the result is what rank s of the group had as the part for this rank."""
    sent = parts.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return received


def _cut(length: int, num_parts: int) -> list[int]:
    share = -(-length // num_parts)
    if share * (num_parts - 1) >= length:
        share = length // num_parts
    return [share] * (num_parts - 1) + [length - share * (num_parts - 1)]
