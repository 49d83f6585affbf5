"""Judge's side of torchharmonics_spherical_convolution.

The layout has 2 azimuth ranks for an even number of ranks, else 1; None is passed for a group only where the default
group is the right one. psi is coalesced. The tolerance is the catalogue's for contractions without TF32. The baseline
convolves for all output longitudes in one call where the catalogue's loops over them, and exchanges each rank's
output latitudes over the polar group where that all-reduces all of them.
"""

from collections.abc import Iterator
from math import pi, sin
from typing import Any

import torch

from pkb.problems._check import relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size

# Tiny sizes vary grid, channels, groups, step and bias with the draw. `filter` is `full` (a quarter of all entries),
# `diagonal` (few entries on every polar rank) or `band` (latitudes and longitudes nearby).
PROBLEM = Problem(
    number=62,
    group="convolution",
    parallelism="spatial (polar x azimuth)",
    origin="torch-harmonics distributed DISCO convolution on S2",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"batch": 2, "kernels": 3, "out": 4, "filter": "full"},
        "base": {"batch": 32, "channels": 8, "out": 8, "kernels": 3, "grid": (128, 256), "filter": "diagonal"},
        "large": {"batch": 4, "channels": 32, "out": 32, "kernels": 4, "grid": (360, 720), "filter": "band"},
    },
    check=relative(bf16=1e-5, fp32=1e-5),
    dtypes=("fp32",),
)

NUM_ENTRIES = 4
"""Of a row of the diagonal filter on each polar rank."""

REACH, WIDEST, NARROWEST = 3, 64, 7
"""Latitudes to either side and longitudes of the band filter."""


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    index, world_size = draw.index, draw.world_size
    azimuth, polar = _layout(world_size)
    p = draw.rank // azimuth
    nlat, nlon = _grid(size, polar, index)
    step = 2 if "grid" not in size and index % 3 == 1 else 1
    nlat_out = nlat // 2 if "grid" not in size and index % 4 in (1, 2) else nlat
    groups = 2 if "grid" not in size and index % 2 == 1 else 1
    channels = size.get("channels", 6 if groups == 2 else 5 * azimuth)
    cuts = _cut(nlat, polar)
    x = draw.normal(size["batch"], channels, cuts[p], nlon // azimuth)
    weight = draw.shared_normal(size["out"], channels // groups, size["kernels"])
    bias = draw.shared_normal(size["out"])
    make = {"full": _full_filter, "diagonal": _diagonal_filter, "band": _band_filter}[size["filter"]]
    psi = make(draw, (size["kernels"], nlat_out, nlat, nlon), cuts, p)
    azimuth_group: Group | None = Group.inner(world_size, azimuth)
    polar_group: Group | None = Group.outer(world_size, azimuth)
    if index % 2 == 1:
        azimuth_group = None if azimuth == world_size else azimuth_group
        polar_group = None if polar == world_size else polar_group
    arguments = (x, psi, weight, groups, nlon // step, nlon, azimuth_group, polar_group)
    return arguments if index % 4 == 3 else (*arguments, bias)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    z = _answer(inputs_of_all_ranks, *_joined(inputs_of_all_ranks))
    return _shares(z, world_size)


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Counted for filters of any support: every output needs all latitudes, x of the peers or their part of z, whichever
    # is smaller, for the own longitudes; and for the own latitudes x of the longitudes that the peers have (with the
    # diagonal filter, which moves the own longitudes by up to half of them, one half of these). A solution that makes
    # use of a band filter's support needs less: a few latitudes and longitudes beyond either cut. x is read and z
    # written once, psi with three indices an entry.
    azimuth, polar = _layout(world_size)
    nlat, nlon = _grid(size, polar, 0)
    channels, num_rows = size.get("channels", 5 * azimuth), size["kernels"] * nlat
    x_bytes, z_bytes = (4 * size["batch"] * n * nlat * nlon for n in (channels, size["out"]))
    num_entries = (
        num_rows
        * {
            "full": nlat * nlon / 4,
            "diagonal": polar * NUM_ENTRIES,
            "band": (2 * REACH + 1) * sum(_widths(nlat)) / nlat,
        }[size["filter"]]
    )
    others = (azimuth - 1) * x_bytes / world_size
    link_bytes = (1 - 1 / polar) / azimuth * min(x_bytes, z_bytes)
    link_bytes += others * (0.5 if size["filter"] == "diagonal" else 1.0)
    num_filtered = size["batch"] * channels * nlon
    return Cost(
        link_bytes=link_bytes,
        hbm_bytes=(x_bytes + z_bytes) / world_size + num_entries / polar * (4 + 3 * 8),
        flops=2 * num_filtered * (num_entries + size["out"] * num_rows) / world_size,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    azimuth, polar = _layout(world_size)
    x, psi = _joined(inputs_of_all_ranks)
    _, _, weight, groups, nlon_out, nlon_in = inputs_of_all_ranks[0][:6]
    bias = _bias(inputs_of_all_ranks)

    def shares(z: torch.Tensor) -> list[torch.Tensor]:
        return _shares(z, world_size)

    def answer(x: torch.Tensor, psi: torch.Tensor) -> list[torch.Tensor]:
        return shares(_answer(inputs_of_all_ranks, x, psi))

    backwards = _filtered(x, psi).roll(-1, -1).flip(-1)
    turned = backwards[..., :: nlon_in // nlon_out]
    yield "rolled in the other direction", shares(_contracted(turned, weight, groups, bias))
    yield "filter's longitudes reversed", answer(x, psi.flip(-1))
    yield "longitudes one place off", answer(x, psi.roll(1, -1))
    yield "latitudes one place off", answer(x, psi.roll(1, 2))
    if psi.shape[0] > 1:
        yield "filters exchanged", answer(x, psi.flip(0))
    if nlon_out < nlon_in:
        y = _filtered(x, psi)
        yield "step forgotten", shares(_contracted(y[..., :nlon_out], weight, groups, bias))
    y = _filtered(x, psi)[..., :: nlon_in // nlon_out]
    if groups > 1:
        dealt = y.reshape(y.shape[0], -1, groups, *y.shape[2:]).transpose(1, 2).reshape(y.shape)
        yield "channels dealt out to groups", shares(_contracted(dealt, weight, groups, bias))
        yield "groups exchanged", shares(_contracted(y.roll(y.shape[1] // groups, 1), weight, groups, bias))
    if bias is not None:
        yield "bias left out", shares(_contracted(y, weight, groups, None))
        if world_size > 1:
            yield "bias added by every rank", shares(_contracted(y, weight, groups, world_size * bias))
    if world_size == 1:
        return
    if azimuth > 1:
        width = nlon_in // azimuth
        yield "longitude pieces exchanged", answer(x.roll(width, -1), psi)
        yield "channel pieces exchanged", shares(_contracted(y.roll(y.shape[1] // azimuth, 1), weight, groups, bias))
    if polar > 1:
        cuts = _cut(x.shape[2], polar)
        own = [_only(psi, sum(cuts[:p]), cuts[p]) for p in range(polar)]
        alone = [answer(x, one) for one in own]
        yield "no sum over latitudes of the peers", [alone[r // azimuth][r] for r in range(world_size)]
        yield "summed over the azimuth group", [azimuth * alone[r // azimuth][r] for r in range(world_size)]
        yield "last latitudes left out", answer(x, psi - own[-1])
        same = torch.cat([psi[:, :, : cuts[p]] for p in range(polar)], dim=2)
        yield "rank 0's part of the filter everywhere", answer(x, same)
        even = _contracted(y, weight, groups, bias).roll(1, 2)
        yield "output latitudes one place off", shares(even)


def _answer(inputs_of_all_ranks: list[tuple[Any, ...]], x: torch.Tensor, psi: torch.Tensor) -> torch.Tensor:
    """z over the whole sphere."""
    _, _, weight, groups, nlon_out, nlon_in = inputs_of_all_ranks[0][:6]
    y = _filtered(x, psi)[..., :: nlon_in // nlon_out]
    return _contracted(y, weight, groups, _bias(inputs_of_all_ranks))


def _filtered(x: torch.Tensor, psi: torch.Tensor) -> torch.Tensor:
    """y for every input longitude as a product of spectra along longitudes, float64."""
    spectrum = torch.einsum("koif,bcif->bckof", torch.fft.rfft(psi).conj(), torch.fft.rfft(x))
    y: torch.Tensor = torch.fft.irfft(spectrum, n=x.shape[-1])
    return y


def _contracted(y: torch.Tensor, weight: torch.Tensor, groups: int, bias: torch.Tensor | None) -> torch.Tensor:
    weights = weight.double().view(groups, -1, *weight.shape[1:])
    grouped = y.reshape(y.shape[0], groups, -1, *y.shape[2:])
    z: torch.Tensor = torch.einsum("bgckom,gqck->bgqom", grouped, weights).flatten(1, 2)
    return z if bias is None else torch.add(z, bias.double().view(-1, 1, 1))


def _joined(inputs_of_all_ranks: list[tuple[Any, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
    """x [B, C, nlat, nlon] and psi [K, nlat_out, nlat, nlon], dense, float64."""
    azimuth, _ = _layout(len(inputs_of_all_ranks))
    nlon = inputs_of_all_ranks[0][5]
    xs = [one[0].double() for one in inputs_of_all_ranks]
    bands = [torch.cat(xs[first : first + azimuth], dim=-1) for first in range(0, len(xs), azimuth)]
    filters = [one[1].to_dense().double() for one in inputs_of_all_ranks[::azimuth]]
    joined = torch.cat(filters, dim=2)
    return torch.cat(bands, dim=2), joined.view(*joined.shape[:2], -1, nlon)


def _shares(z: torch.Tensor, world_size: int) -> list[torch.Tensor]:
    azimuth, polar = _layout(world_size)
    bands = torch.split(z, _cut(z.shape[2], polar), dim=2)
    return [part for band in bands for part in band.chunk(azimuth, dim=3)]


def _bias(inputs_of_all_ranks: list[tuple[Any, ...]]) -> torch.Tensor | None:
    first = inputs_of_all_ranks[0]
    return first[8] if len(first) > 8 else None


def _only(psi: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """The filter with the entries at some latitudes alone."""
    result = torch.zeros_like(psi)
    result[:, :, first : first + count] = psi[:, :, first : first + count]
    return result


def _full_filter(draw: Draw, shape: tuple[int, int, int, int], cuts: list[int], p: int) -> torch.Tensor:
    filters = draw.shared_normal(*shape) * (draw.shared_uniform(0.0, 1.0, *shape) < 0.25)
    filters[draw.index % shape[0], draw.index % shape[1]] = 0.0
    if draw.index % 4 == 2 and len(cuts) > 1:
        # One rank's part has no entries.
        filters[:, :, shape[2] - cuts[-1] :] = 0.0
    first = sum(cuts[:p])
    return filters[:, :, first : first + cuts[p]].flatten(2).to_sparse()


def _diagonal_filter(draw: Draw, shape: tuple[int, int, int, int], cuts: list[int], p: int) -> torch.Tensor:
    num_kernels, nlat_out, _, nlon = shape
    values = draw.shared_normal(num_kernels, nlat_out, len(cuts), NUM_ENTRIES, scale=0.05)[:, :, p]
    kernel = torch.arange(num_kernels, device=draw.device).view(-1, 1, 1)
    out = torch.arange(nlat_out, device=draw.device).view(-1, 1)
    entry = torch.arange(NUM_ENTRIES, device=draw.device)
    column = (out - sum(cuts[:p])) % cuts[p] * nlon + (out + entry * (kernel + 1)) % nlon
    index = torch.stack([part.expand_as(values).flatten() for part in (kernel, out, column)])
    size = (num_kernels, nlat_out, cuts[p] * nlon)
    return _sparse(index, values.flatten(), size)


def _band_filter(draw: Draw, shape: tuple[int, int, int, int], cuts: list[int], p: int) -> torch.Tensor:
    num_kernels, nlat_out, nlat, nlon = shape
    first = sum(cuts[:p])
    values = draw.shared_normal(num_kernels, nlat_out, 2 * REACH + 1, WIDEST, scale=0.05)
    out = torch.arange(nlat_out, device=draw.device).view(-1, 1, 1)
    lat = out + torch.arange(-REACH, REACH + 1, device=draw.device).view(-1, 1)
    place = torch.arange(WIDEST, device=draw.device)
    width = torch.tensor(_widths(nlat), device=draw.device)[lat.clamp(0, nlat - 1)]
    is_mine = (lat >= first) & (lat < first + cuts[p]) & (place < width)
    kept = is_mine.expand_as(values).nonzero(as_tuple=True)
    column = ((lat - first) * nlon + (place - width // 2) % nlon).expand_as(values)[kept]
    index = torch.stack((kept[0], kept[1], column))
    size = (num_kernels, nlat_out, cuts[p] * nlon)
    return _sparse(index, values[kept], size)


def _widths(nlat: int) -> list[int]:
    """Longitudes of the band at each latitude."""
    return [min(WIDEST, round(NARROWEST / sin(pi * (i + 0.5) / nlat))) for i in range(nlat)]


def _layout(world_size: int) -> tuple[int, int]:
    """Azimuth ranks and polar ranks."""
    azimuth = 2 if world_size % 2 == 0 else 1
    return azimuth, world_size // azimuth


def _grid(size: Size, polar: int, index: int) -> tuple[int, int]:
    nlat, nlon = size.get("grid", (3 * polar + 1, 10 if index % 3 == 0 else 12))
    return int(nlat), int(nlon)


def _cut(length: int, num_parts: int) -> list[int]:
    """Equal pieces, rounded up, and the rest; rounded down where that would leave no rest."""
    up, down = -(-length // num_parts), length // num_parts
    share = up if up * (num_parts - 1) < length else down
    return [share] * (num_parts - 1) + [length - share * (num_parts - 1)]


def _sparse(index: torch.Tensor, values: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
    # Said once more by the context: torch 2.11 warns of a default that nobody relies on.
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        return torch.sparse_coo_tensor(index, values, size, check_invariants=False).coalesce()
