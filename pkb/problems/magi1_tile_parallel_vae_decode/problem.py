"""Judge's side of magi1_tile_parallel_vae_decode.

The result is bf16 for latents of either dtype, so the problem is judged in bf16 alone; latents of `tiny_image` are
float32. The oracle writes the frame in closed form, as products with one interpolation matrix for each axis. The
baseline needs no exchange of shapes, which all ranks know. Bounds on elements are added to the catalogue's check.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import torch

from pkb.problems._check import ELEMENTS, Expected, Region, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size

# Of `batches`, `channels`, `temporal_overlaps` and `sr_ratios` each draw takes one.
PROBLEM = Problem(
    number=78,
    group="rendering",
    parallelism="spatial (tiles)",
    origin="MAGI-1 tile-parallel VAE decode",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"batches": (1, 2), "channels": (4, 2, 5), "shape": (5, 7, 6), "tile": (2, 4, 4), "ups": (2, 2)}
        | {"spatial_overlap": 0.25, "temporal_overlaps": (0.0, 0.5), "sr_ratios": (1, 1, 2, 2)},
        "tiny_image": {"batches": (1,), "channels": (3, 1), "shape": (5, 7, 9), "tile": (3, 4, 8), "ups": (1, 2)}
        | {"spatial_overlap": 0.5, "temporal_overlaps": (0.5,), "sr_ratios": (1,), "image": True},
        "base": {"batches": (1,), "channels": (16,), "shape": (6, 90, 90), "tile": (3, 32, 32), "ups": (4, 8)}
        | {"spatial_overlap": 0.25, "temporal_overlaps": (0.0,), "sr_ratios": (1,)},
        "large": {"batches": (1,), "channels": (16,), "shape": (12, 180, 180), "tile": (3, 32, 32), "ups": (4, 8)}
        | {"spatial_overlap": 0.25, "temporal_overlaps": (0.0,), "sr_ratios": (1,)},
    },
    check=relative(bf16=1e-2, fp32=1e-2, elements=ELEMENTS),
    dtypes=("bf16",),
)

Tile = tuple[int, int, int]
"""Index along t, h and w."""


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    index, is_image = draw.index, size.get("image", False)
    z = draw.normal(_pick(size["batches"], index), _pick(size["channels"], index), *size["shape"])
    if is_image:
        # The same numbers with more digits than bf16 has.
        z = z.float() + draw.uniform(-(2.0**-10), 2.0**-10, *z.shape)
    overlaps = size["spatial_overlap"], _pick(size["temporal_overlaps"], index)
    up_t, up_s = size["ups"]
    arguments = (z, *size["tile"], *overlaps, up_s, up_t, _pick(size["sr_ratios"], index), is_image)
    if index % 3 == 0:
        return arguments if is_image else arguments[:8] if arguments[8] == 1 else arguments[:9]
    return (*arguments, Group.whole(draw.world_size) if index % 3 == 1 else None)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Expected]:
    axes, zs = _axes(inputs_of_all_ranks[0]), _latents(inputs_of_all_ranks)
    frame = _frame(axes, zs, _owners(axes, world_size))
    t, h, w = (axis.is_blended(frame.device) for axis in axes)
    masks = {
        "blended strips": t[:, None, None] | h[:, None] | w,
        "corners where all axes blend": t[:, None, None] & h[:, None] & w,
    }
    everything = slice(None)
    regions = [Region(name, (everything, everything, mask)) for name, mask in masks.items() if bool(mask.any())]
    return [Expected(frame, regions=tuple(regions))] * world_size


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Exchanging latents and decoding all tiles everywhere takes the fewest bytes: three channels of the latents of
    # others' tiles come over the link. The result is written once; an element takes 7 interpolations of 3 operations.
    z_bytes = 4 if size.get("image", False) else 2
    axes = _axes_of(size, 0)
    batch, channels = size["batches"][0], min(3, size["channels"][0])
    latents = batch * channels * prod(sum(size for _, size in axis.windows) for axis in axes)
    out = 3 * batch * prod(sum(axis.lengths) for axis in axes)
    return Cost(
        link_bytes=latents * z_bytes * (world_size - 1) / world_size,
        hbm_bytes=batch * channels * prod(size["shape"]) * z_bytes + 2 * out,
        flops=21.0 * out,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    ranks = range(world_size)
    axes, zs = _axes(inputs_of_all_ranks[0]), _latents(inputs_of_all_ranks)
    owners = _owners(axes, world_size)

    def answers(*changed: _Axis, z: torch.Tensor = zs, who: dict[Tile, int] = owners, **how: Any) -> list[Any]:
        return [_frame(list(changed) or axes, z, who, **how)] * world_size

    yield "blended with blended neighbors", answers(chained=True)
    yield "blended along w first", answers(order=(2, 1, 0))
    yield "not blended", answers(*(replace(axis, weigh=lambda i, e: 1 + 0 * i) for axis in axes))
    yield "weights from 1 on", answers(*(replace(axis, weigh=lambda i, e: (i + 1) / e) for axis in axes))
    yield "weights reversed", answers(*(replace(axis, weigh=lambda i, e: 1 - i / e) for axis in axes))
    yield "not blended along w", answers(*axes[:2], replace(axes[2], weigh=lambda i, e: 1 + 0 * i))
    yield "interpolated across borders of tiles", answers(*(replace(axis, has_borders=False) for axis in axes))
    yield "strips not cut in short tiles", answers(*(replace(axis, cuts_strip=False) for axis in axes))
    yield "nearest latent", answers(*(replace(axis, interpolate=_nearest) for axis in axes))
    yield "corners aligned", answers(*(replace(axis, interpolate=_corners_aligned) for axis in axes))
    yield "channels backwards", [one.value.flip(1) for one in expected]
    num_channels = inputs_of_all_ranks[0][0].shape[1]
    if num_channels == 2:
        yield "last channel repeated", answers(z=zs[:, :, [0, 1, 1]])
    elif num_channels > 3:
        last = torch.stack([one[0][:, -3:].double() for one in inputs_of_all_ranks])
        yield "last channels", answers(z=last)
    if world_size == 1:
        return
    yield "own latents for all tiles", [_frame(axes, zs, dict.fromkeys(owners, r)) for r in ranks]
    yield "tiles dealt out in their order", answers(who={k: i % world_size for i, k in enumerate(sorted(owners))})
    yield "equal tiles in reverse order", answers(who=_owners(axes, world_size, backwards=True))
    yield "smallest tiles first", answers(who=_owners(axes, world_size, smallest_first=True))
    yield "tiles in blocks", answers(who=_owners(axes, world_size, in_blocks=True))
    yield (
        "own tiles alone",
        [_frame(axes, zs * (torch.arange(world_size) == r).to(zs)[:, *[None] * 5], owners) for r in ranks],
    )


def _weight(i: torch.Tensor, e: int) -> torch.Tensor:
    return i / e


def _trilinear(i: torch.Tensor, size: int, up: int) -> torch.Tensor:
    """Source coordinates of elements in a tile."""
    return ((i + 0.5) / up - 0.5).clamp_min(0.0)


def _nearest(i: torch.Tensor, size: int, up: int) -> torch.Tensor:
    return (i / up).floor()


def _corners_aligned(i: torch.Tensor, size: int, up: int) -> torch.Tensor:
    return i * (size - 1) / max(1, size * up - 1)


@dataclass(frozen=True)
class _Axis:
    """Tiles along one axis. The last fields are what near misses do in another way."""

    extent: int
    tile: int
    up: int
    overlap: float
    weigh: Callable[[torch.Tensor, int], torch.Tensor] = _weight
    interpolate: Callable[[torch.Tensor, int, int], torch.Tensor] = _trilinear
    has_borders: bool = True
    cuts_strip: bool = True

    @property
    def blend(self) -> int:
        return int(self.tile * self.up * self.overlap)

    @property
    def windows(self) -> list[tuple[int, int]]:
        """First latent and number of latents of each tile."""
        starts = range(0, self.extent, int(self.tile * (1 - self.overlap)))
        return [(start, min(self.tile, self.extent - start)) for start in starts]

    @property
    def lengths(self) -> list[int]:
        """Elements of each tile in the frame."""
        return [min(self.tile * self.up - self.blend, size * self.up) for _, size in self.windows]

    def strip(self, k: int) -> int:
        """Elements of tile k that are blended; those that the frame has no room for included."""
        if k == 0:
            return 0
        sizes = [size * self.up for _, size in self.windows[k - 1 : k + 1]]
        return min(*sizes, self.blend) if self.cuts_strip else self.blend

    def rows(self, k: int, device: torch.device) -> torch.Tensor:
        """Tile k as far as the frame shows it, as a matrix over all latents of the axis."""
        return self._matrix(k, torch.arange(self.lengths[k], device=device, dtype=torch.float64))

    def rows_before(self, k: int, device: torch.device) -> torch.Tensor:
        """Elements of tile k - 1 that are blended into tile k, at their places there."""
        place = torch.arange(self.lengths[k], device=device, dtype=torch.float64)
        i = place + self.windows[k - 1][1] * self.up - self.strip(k)
        return self._matrix(k - 1, torch.where(place < self.strip(k), i, 0.0).clamp_min(0.0))

    def weights(self, k: int, device: torch.device) -> torch.Tensor:
        """Share of tile k itself in its elements."""
        place = torch.arange(self.lengths[k], device=device, dtype=torch.float64)
        strip = self.strip(k)
        return torch.where(place < strip, self.weigh(place, max(1, strip)), 1.0)

    def is_blended(self, device: torch.device) -> torch.Tensor:
        """Elements of the frame's axis with two sources. The first one of a strip is its neighbor's alone."""
        parts = [torch.arange(n, device=device) < self.strip(k) for k, n in enumerate(self.lengths)]
        return torch.cat(parts)

    def _matrix(self, k: int, i: torch.Tensor) -> torch.Tensor:
        start, size = self.windows[k]
        source = self.interpolate(i, size, self.up)
        if not self.has_borders:
            source, start, size = (i + 0.5) / self.up - 0.5 + start, 0, self.extent
        source = source.clamp(0.0, size - 1.0)
        low = source.floor()
        matrix = torch.zeros((len(i), self.extent), dtype=torch.float64, device=i.device)
        matrix.scatter_add_(1, (start + low).long()[:, None], (1 - source + low)[:, None])
        matrix.scatter_add_(1, (start + (low + 1).clamp_max(size - 1)).long()[:, None], (source - low)[:, None])
        return matrix


def _frame(
    axes: list[_Axis],
    zs: torch.Tensor,
    owners: dict[Tile, int],
    order: tuple[int, ...] = (0, 1, 2),
    chained: bool = False,
) -> torch.Tensor:
    """The whole frame, float64; `zs` [W, B, 3, T, H, Wd]."""

    def raw(k: Tile, matrices: list[torch.Tensor]) -> torch.Tensor:
        found: torch.Tensor = zs[owners[k]]
        for d, matrix in enumerate(matrices):
            used = matrix.count_nonzero(dim=0) > 0
            found = (found.movedim(2 + d, -1)[..., used] @ matrix[:, used].t()).movedim(-1, 2 + d)
        return found

    def value(k: Tile, matrices: list[torch.Tensor], blended: tuple[int, ...]) -> torch.Tensor:
        """Blended along so many axes."""
        if not blended:
            return raw(k, matrices)
        *earlier, d = blended
        own = value(k, matrices, tuple(earlier))
        if axes[d].strip(k[d]) == 0:
            return own
        t, h, w = (i - (dim == d) for dim, i in enumerate(k))
        others = [*matrices[:d], axes[d].rows_before(k[d], zs.device), *matrices[d + 1 :]]
        neighbor = value((t, h, w), others, tuple(earlier) if chained else ())
        weight = axes[d].weights(k[d], zs.device).view([-1 if dim == d else 1 for dim in range(3)])
        return own * weight + neighbor * (1 - weight)

    frame = zs.new_zeros((*zs.shape[1:3], *(sum(axis.lengths) for axis in axes)))
    for k in owners:
        place = [slice(sum(axis.lengths[:i]), sum(axis.lengths[: i + 1])) for axis, i in zip(axes, k, strict=True)]
        frame[:, :, *place] = value(k, [axis.rows(i, zs.device) for axis, i in zip(axes, k, strict=True)], order)
    return frame


def _owners(
    axes: list[_Axis],
    world_size: int,
    *,
    backwards: bool = False,
    smallest_first: bool = False,
    in_blocks: bool = False,
) -> dict[Tile, int]:
    tiles: list[Tile] = [(t, h, w) for t, h, w in product(*(range(len(axis.windows)) for axis in axes))]
    counts = torch.tensor([prod(axis.windows[i][1] for axis, i in zip(axes, k, strict=True)) for k in tiles])
    numbers = torch.arange(len(tiles))
    keys = counts * (len(tiles) if smallest_first else -len(tiles)) + (-numbers if backwards else numbers)
    place = keys.argsort().argsort()
    owner = place * world_size // len(tiles) if in_blocks else place % world_size
    return dict(zip(tiles, owner.tolist(), strict=True))


def _latents(inputs_of_all_ranks: list[tuple[Any, ...]]) -> torch.Tensor:
    """The three channels of all ranks, float64."""
    zs = torch.stack([one[0] for one in inputs_of_all_ranks])
    return zs[:, :, torch.arange(3) % zs.shape[2]].double()


def _axes(arguments: tuple[Any, ...]) -> list[_Axis]:
    z, length, height, width, spatial, temporal, up_s, up_t = arguments[:8]
    up = up_s * (arguments[8] if len(arguments) > 8 else 1)
    is_image = arguments[9] if len(arguments) > 9 else False
    return [
        _Axis(z.shape[2], length + int(is_image), up_t, temporal),
        _Axis(z.shape[3], height, up, spatial),
        _Axis(z.shape[4], width, up, spatial),
    ]


def _axes_of(size: Size, index: int) -> list[_Axis]:
    """The axes of a draw."""
    up_t, up_s = size["ups"]
    ups = (up_t, *[up_s * _pick(size["sr_ratios"], index)] * 2)
    overlaps = (_pick(size["temporal_overlaps"], index), *[size["spatial_overlap"]] * 2)
    tiles = (size["tile"][0] + int(size.get("image", False)), *size["tile"][1:])
    return [_Axis(*one) for one in zip(size["shape"], tiles, ups, overlaps, strict=True)]


def _pick(values: tuple[Any, ...], index: int) -> Any:
    return values[index % len(values)]
