"""Judge's side of hyena_forward_cp.

The baseline gates before and after the two exchanges, where the catalogue's sends all three inputs: the results are
the same bits, and nobody has to pay for it. In bf16 a channel may be off by 5e-2, since one of `tiny` has as few as
six elements, where roundings come to 2.6e-2. `tiny_long` is not in the catalogue: so long that a sum in bf16 shows.
"""

from collections.abc import Iterator
from math import log, log2
from typing import Any

import torch

from pkb.problems._check import ELEMENTS, blocks, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# A rank has `length` positions, or all of them `length_of_all`; there are `groups` or `groups_per_rank`. A filter has
# `taps` or L elements, whichever are fewer, for tiny sizes also 2 or 4 fewer with the draw.
PROBLEM = Problem(
    number=72,
    group="convolution",
    parallelism="cp (sequence to channel all-to-all, zigzag)",
    origin="Savanna / Evo 2 (StripedHyena 2) Hyena mixer under context parallelism",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"length": 6, "groups_per_rank": 2, "group_dim": 2, "varied": True},
        "tiny_long": {"length_of_all": 1024, "groups": 8, "group_dim": 1, "varied": True},
        "base": {"length": 2048, "groups": 1024, "group_dim": 1, "taps": 4096},
        "large": {"length": 8192, "groups": 256, "group_dim": 16},
    },
    check=relative(bf16=1e-2, fp32=1e-4, elements=ELEMENTS, rows=blocks(bf16=5e-2, fp32=1e-4, over=(0, 1))),
)

MAX_ELEMS = 2**26
"""Elements of a transform of the oracle."""


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    index, world_size, varied = draw.index, draw.world_size, size.get("varied", False)
    length, num_groups, group_dim = _length(size, world_size), _num_groups(size, world_size), size["group_dim"]
    total = length * world_size
    channels, batch = num_groups * group_dim, 1 + index % 2 if varied else 1
    x1, x2, v = (draw.normal(batch, channels, length) for _ in range(3))
    num_taps = max(1, min(size.get("taps", total), total) - (2 * (index % 3) if varied else 0))
    # Filters of unit energy make channels comparable.
    reach = draw.shared_uniform(log(4.0), log(total), num_groups, 1).exp()
    age = torch.arange(num_taps, device=draw.device)
    h = draw.shared_normal(num_groups, num_taps).float() * (-age / reach).exp()
    h = (h / h.norm(dim=-1, keepdim=True)).to(draw.dtype)
    arguments = (x1, x2, v, h, draw.shared_normal(channels), num_groups, group_dim)
    if varied and index % 4 in (1, 2, 4):
        return (*arguments, None if index % 4 == 1 else Group.whole(world_size), index % 4 == 1)
    return arguments if index % 2 == 0 else (*arguments, Group.whole(world_size))


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    *_, group_dim, zigzag = _options(inputs_of_all_ranks)
    x1, x2, v = (_joined(inputs_of_all_ranks, i, zigzag) for i in range(3))
    h, bias = (tensor.double() for tensor in inputs_of_all_ranks[0][3:5])
    return _shares(x1 * _convolved(x2 * v, h.repeat_interleave(group_dim, dim=0), bias), world_size, zigzag)


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # z leaves and y comes back, each a tensor without the own part. The three inputs and the output are touched once;
    # z and y of the exchanged layout are written and read once each. A transform of 2 L real points takes
    # 2.5 * 2 L log2(2 L), and there are two for each channel; filters, shared by a group's channels, add one a group.
    length, num_groups = _length(size, world_size), _num_groups(size, world_size)
    channels, total = num_groups * size["group_dim"], length * world_size
    num_elems = channels * length * (1.5 if size.get("varied", False) else 1)
    transforms = (2 * num_elems / length + num_groups) / world_size
    taps = num_groups * min(size.get("taps", total), total) / world_size
    return Cost(
        link_bytes=2 * num_elems * dtype_bytes(dtype) * (world_size - 1) / world_size,
        hbm_bytes=(4 * num_elems + (4 * num_elems if world_size > 1 else 0) + taps) * dtype_bytes(dtype),
        flops=transforms * 2.5 * 2 * total * log2(2 * total),
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    num_groups, group_dim, zigzag = _options(inputs_of_all_ranks)
    x1, x2, v = (_joined(inputs_of_all_ranks, i, zigzag) for i in range(3))
    h, bias = (tensor.double() for tensor in inputs_of_all_ranks[0][3:5])
    filters = h.repeat_interleave(group_dim, dim=0)
    z = x2 * v
    length = z.shape[-1]

    def answer(y: torch.Tensor) -> list[torch.Tensor]:
        return _shares(x1 * y, world_size, zigzag)

    y = _convolved(z, filters, bias)
    spectra = torch.fft.rfft(z) * torch.fft.rfft(filters, n=length)
    yield "circular convolution", answer(torch.fft.irfft(spectra, n=length) + bias[:, None] * z)
    yield "later positions in place of earlier ones", answer(_convolved(z.flip(-1), filters, bias).flip(-1))
    yield "filter reversed", answer(_convolved(z, filters.flip(-1), bias))
    yield "one position late", answer(y.roll(1, -1))
    yield "bias left out", answer(y - bias[:, None] * z)
    yield "bias not times z", answer(y - bias[:, None] * (z - 1))
    yield "gates exchanged", _shares(x2 * _convolved(x1 * v, filters, bias), world_size, zigzag)
    yield "gate x1 left out", _shares(y, world_size, zigzag)
    if num_groups > 1:
        dealt = h.repeat(group_dim, 1)
        yield "filters dealt out to channels one by one", answer(_convolved(z, dealt, bias))
    yield "channels not last", [one.transpose(1, 2).reshape(one.shape) for one in expected]
    if num_groups * group_dim * length <= 2**13 and length > 256:
        yield "accumulated in bf16", answer(_accumulated_in_bf16(z, filters, bias))
    if world_size == 1:
        return
    ranks = range(world_size)
    other = [_joined(inputs_of_all_ranks, i, not zigzag) for i in range(3)]
    in_other_order = other[0] * _convolved(other[1] * other[2], filters, bias)
    yield "the other order of positions", _shares(in_other_order, world_size, not zigzag)
    yield "own positions in the other order", _shares(x1 * y, world_size, not zigzag)
    if zigzag:
        flipped = [torch.cat(one.chunk(2, dim=1)[::-1], dim=1) for one in expected]
        yield "own chunks exchanged", flipped
    share = num_groups // world_size
    rolled = h.roll(share, 0).repeat_interleave(group_dim, dim=0)
    yield "another rank's filters", answer(_convolved(z, rolled, bias))
    block = num_groups * group_dim // world_size
    turned = [one.roll(-block * r, -1) for r, one in zip(ranks, expected, strict=True)]
    yield "channel blocks in order of arrival", turned


def _options(inputs_of_all_ranks: list[tuple[Any, ...]]) -> tuple[int, int, bool]:
    """num_groups, group_dim, with_zigzag_splitting."""
    first = inputs_of_all_ranks[0]
    return first[5], first[6], first[8] if len(first) > 8 else True


def _places(world_size: int, zigzag: bool) -> list[int]:
    """Which half chunk of the sequence each of the ranks' halves is, rank by rank."""
    if not zigzag:
        return list(range(2 * world_size))
    return [place for rank in range(world_size) for place in (rank, 2 * world_size - 1 - rank)]


def _joined(inputs_of_all_ranks: list[tuple[Any, ...]], position: int, zigzag: bool) -> torch.Tensor:
    """An argument of all ranks in the order of the sequence, [B, C, L], float64."""
    shards = torch.cat([one[position].double() for one in inputs_of_all_ranks], dim=-1)
    world_size = len(inputs_of_all_ranks)
    halves = shards.view(*shards.shape[:2], 2 * world_size, -1)
    order = torch.tensor(_places(world_size, zigzag), device=shards.device).argsort()
    return halves[:, :, order].view(shards.shape)


def _shares(sequence: torch.Tensor, world_size: int, zigzag: bool) -> list[torch.Tensor]:
    """Each rank's positions of [B, C, L], channels last."""
    halves = sequence.transpose(1, 2).chunk(2 * world_size, dim=1)
    places = _places(world_size, zigzag)
    return [torch.cat((halves[places[2 * r]], halves[places[2 * r + 1]]), dim=1) for r in range(world_size)]


def _convolved(z: torch.Tensor, filters: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Causal convolution of [B, C, L] with [C, f], and the bias's part, a block of channels at a time."""
    length = z.shape[-1]
    num_points = length + filters.shape[-1]
    result = torch.empty_like(z)
    block = max(1, MAX_ELEMS // (num_points * z.shape[0]))
    for first in range(0, z.shape[1], block):
        own = slice(first, first + block)
        spectrum = torch.fft.rfft(z[:, own], n=num_points) * torch.fft.rfft(filters[own], n=num_points)
        result[:, own] = torch.fft.irfft(spectrum, n=num_points)[..., :length]
    return result.addcmul_(bias[:, None], z)


def _accumulated_in_bf16(z: torch.Tensor, filters: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The same with a running sum that is rounded to bf16 after each tap."""
    total = (bias[:, None] * z).bfloat16()
    for age in range(min(filters.shape[-1], z.shape[-1])):
        total[..., age:] += (filters[:, age, None] * z[..., : z.shape[-1] - age]).bfloat16()
    return total.double()


def _length(size: Size, world_size: int) -> int:
    return int(size["length"] if "length" in size else size["length_of_all"] // world_size)


def _num_groups(size: Size, world_size: int) -> int:
    return int(size["groups"] if "groups" in size else size["groups_per_rank"] * world_size)
