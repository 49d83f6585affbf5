"""Tiled video decode: tiles dealt over ranks, seams blended, full frame everywhere.

Each rank of the group (W ranks, in group order) holds latents `z` [B, C, T, H, Wd] of its own; shape, dtype (bfloat16
or float32) and all other arguments are equal on all ranks. A tile has n latents and is upsampled by u along each axis:
  t: n = `tile_latent_min_length` + int(`first_frame_as_image`), u = `temporal_upsample`;
  h: n = `tile_latent_min_height`, u = `spatial_upsample` * `sr_ratio`; w: n = `tile_latent_min_width`, the same u.
With f = `temporal_tile_overlap_factor` for t, `spatial_tile_overlap_factor` for h and w, each axis has stride =
int(n (1 - f)), blend = int(n u f), keep = n u - blend; a stride <= 0 is a ValueError. An axis of s latents has
ceil(s / stride) tiles; tile k holds n latents from k stride on, cut at the end of the axis. Tiles are counted
row-major over (t, h, w).

Tiles sorted by their number of latents, largest first, equal ones in their order, are dealt to the ranks: the p-th to
rank p mod W, which decodes it from its own z. (So the result is a mosaic of all ranks' latents.) Decoding is a
trilinear interpolation within the tile, in float32: along each axis element i of the n u results has the source
coordinate max(0, (i + 1/2) / u - 1/2), and neighbors beyond the tile are its last latents. The first 3 channels are
decoded; if C < 3, channels repeat cyclically. The decoded tile is rounded to bfloat16, whatever the dtype of z.

Then a copy of each tile is blended along t, then h, then w, where its index on that axis is > 0: with the decoded tile
one step back on that axis as prev (as decoded, never a blended one), sizes along that axis, and e = min(size of prev,
own size, blend), own[i] = prev[size of prev - e + i] (1 - i/e) + own[i] i/e for i < e; own includes what earlier axes
have blended. It is cut to its first keep elements on each axis. These tiles, side by side in order, are the frame.

Every rank returns the whole frame as a new bfloat16 tensor [B, 3, T_up, H_up, W_up]; T_up is the sum of min(keep, size
of the decoded tile) over the tiles of an axis, likewise H_up and W_up. Overlaps fit: stride u = keep. `group` None is
the default group. All inputs stay as they were.
"""

from itertools import accumulate, product
from math import prod
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    z: torch.Tensor,
    tile_latent_min_length: int,
    tile_latent_min_height: int,
    tile_latent_min_width: int,
    spatial_tile_overlap_factor: float,
    temporal_tile_overlap_factor: float,
    spatial_upsample: int,
    temporal_upsample: int,
    sr_ratio: int = 1,
    first_frame_as_image: bool = False,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    n = (tile_latent_min_length + int(first_frame_as_image), tile_latent_min_height, tile_latent_min_width)
    u = (temporal_upsample, spatial_upsample * sr_ratio, spatial_upsample * sr_ratio)
    f = (temporal_tile_overlap_factor, spatial_tile_overlap_factor, spatial_tile_overlap_factor)
    strides = [int(size * (1 - factor)) for size, factor in zip(n, f, strict=True)]
    if min(strides) <= 0:
        raise ValueError(f"tiles {n} with overlaps {f} do not advance")
    blends = [int(size * up * factor) for size, up, factor in zip(n, u, f, strict=True)]
    keeps = [size * up - blend for size, up, blend in zip(n, u, blends, strict=True)]
    starts = [range(0, extent, stride) for extent, stride in zip(z.shape[2:], strides, strict=True)]
    windows = [[(s, min(s + size, e)) for s in axis] for axis, size, e in zip(starts, n, z.shape[2:], strict=True)]
    tiles = list(product(*(range(len(axis)) for axis in windows)))
    latents = {k: [stop - start for start, stop in _of(windows, k)] for k in tiles}
    order = sorted(tiles, key=lambda k: -prod(latents[k]))
    owned = [order[r::world_size] for r in range(world_size)]
    decoded = {k: [size * up for size, up in zip(latents[k], u, strict=True)] for k in tiles}
    cropped = {k: [min(size, keep) for size, keep in zip(decoded[k], keeps, strict=True)] for k in tiles}

    channels = z[:, :3] if z.shape[1] >= 3 else z[:, [c % z.shape[1] for c in range(3)]]
    raw_own = []
    for k in owned[rank]:
        t, h, w = (slice(*window) for window in _of(windows, k))
        raw_own.append(F.interpolate(channels[:, :, t, h, w].float(), size=decoded[k], mode="trilinear").bfloat16())
    raw = _gather(raw_own, decoded, owned, z, group)
    blended_own = []
    for k in owned[rank]:
        t, h, w = cropped[k]
        blended_own.append(_blend(raw, k, blends)[:, :, :t, :h, :w].bfloat16())
    blended = _gather(blended_own, cropped, owned, z, group)

    ends = [list(accumulate(cropped[_on_axis(d, k)][d] for k in range(len(windows[d])))) for d in range(3)]
    frame = z.new_empty((z.shape[0], 3, *(axis[-1] for axis in ends)), dtype=torch.bfloat16)
    for k, tile in blended.items():
        t, h, w = (slice(end - size, end) for end, size in zip(_of(ends, k), cropped[k], strict=True))
        frame[:, :, t, h, w] = tile
    return frame


def _of(axes: list[Any], k: tuple[int, ...]) -> list[Any]:
    """Entries of a tile, one of each axis."""
    return [axis[i] for axis, i in zip(axes, k, strict=True)]


def _on_axis(d: int, k: int) -> tuple[int, ...]:
    """The tile k steps along axis d."""
    return tuple(k if axis == d else 0 for axis in range(3))


def _blend(raw: dict[tuple[int, ...], torch.Tensor], k: tuple[int, ...], blends: list[int]) -> torch.Tensor:
    own = raw[k].float()
    for d in range(3):
        if k[d] == 0:
            continue
        prev = raw[tuple(i - (axis == d) for axis, i in enumerate(k))]
        dim = d + 2
        e = min(prev.shape[dim], own.shape[dim], blends[d])
        weight = torch.arange(e, device=own.device, dtype=torch.float32) / max(e, 1)
        weight = weight.view([e if axis == dim else 1 for axis in range(5)])
        strip = own.narrow(dim, 0, e)
        strip.copy_(torch.lerp(prev.narrow(dim, prev.shape[dim] - e, e).float(), strip, weight))
    return own


def _gather(
    parts: list[torch.Tensor],
    shapes: dict[tuple[int, ...], list[int]],
    owned: list[list[tuple[int, ...]]],
    z: torch.Tensor,
    group: dist.ProcessGroup | None,
) -> dict[tuple[int, ...], torch.Tensor]:
    """All ranks' tiles by index; shapes are known to all, so only elements travel."""
    images = 3 * z.shape[0]
    most = max(sum(images * prod(shapes[k]) for k in tiles) for tiles in owned)
    sent = z.new_empty(most, dtype=torch.bfloat16)
    first = 0
    for part in parts:
        sent[first : first + part.numel()] = part.flatten()
        first += part.numel()
    gathered = z.new_empty((len(owned), most), dtype=torch.bfloat16)
    dist.all_gather_into_tensor(gathered.view(-1), sent, group=group)
    found = {}
    for received, tiles in zip(gathered, owned, strict=True):
        first = 0
        for k in tiles:
            num_elems = images * prod(shapes[k])
            found[k] = received[first : first + num_elems].view(z.shape[0], 3, *shapes[k])
            first += num_elems
    return found
