"""Judge's side of opensora_conv3d_allreduce.

The catalogue's path by blocks of channels, for tensors of 2^31 elements, is left out of the baseline: no size needs it.
Bounds on elements are added to the catalogue's check.
"""

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import torch
import torch.nn.functional as F

from pkb.problems._check import ELEMENTS, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# `channels` are those of all ranks. Where `paddings` has several entries they take turns.
PROBLEM = Problem(
    number=76,
    group="convolution",
    parallelism="tp",
    origin="Open-Sora video VAE tensor-parallel Conv3d",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"batch": 2, "channels_per_rank": 4, "out": 6, "shape": (5, 7, 6), "kernel": (3, 3, 3)}
        | {"stride": 1, "paddings": (0, 1), "dilation": 1, "groups": 1},
        "tiny_triples": {"batch": 1, "channels_per_rank": 4, "out": 6, "shape": (5, 7, 6), "kernel": (2, 3, 3)}
        | {"stride": (1, 2, 2), "paddings": ((1, 0, 2),), "dilation": (2, 1, 1), "groups": 2},
        "base": {"batch": 1, "channels": 512, "out": 512, "shape": (19, 66, 66), "kernel": (3, 3, 3)}
        | {"stride": 1, "paddings": (0,), "dilation": 1, "groups": 1},
        "large": {"batch": 1, "channels": 512, "out": 512, "shape": (19, 130, 130), "kernel": (3, 3, 3)}
        | {"stride": 1, "paddings": (0,), "dilation": 1, "groups": 1},
    },
    check=relative(bf16=1e-2, fp32=2e-3, elements=ELEMENTS),
)

Triple = tuple[int, int, int]


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    world_size, index = draw.world_size, draw.index
    channels, kernel, groups = _channels(size, world_size), size["kernel"], size["groups"]
    x = draw.normal(size["batch"], channels, *size["shape"])
    num_terms = channels * world_size * prod(kernel) // groups
    weight = draw.normal(size["out"], channels // groups, *kernel, scale=num_terms**-0.5)
    bias = draw.normal(size["out"])
    padding = size["paddings"][index % len(size["paddings"])]
    arguments = (x, weight, None if index % 3 == 1 else bias, size["stride"], padding, size["dilation"])
    if index % 3 == 0 and groups == 1:
        return arguments
    return (*arguments, groups, Group.whole(world_size) if index % 2 == 1 else None)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    total = _total([_partial(one) for one in inputs_of_all_ranks])
    return [_with_bias(total, one[2]) for one in inputs_of_all_ranks]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # A product for each tap, pair of channels and output. The output is all-reduced by slices, or added by a switch;
    # it is written as partial sums and again as the result, the operands are read once.
    channels, num_bytes = _channels(size, world_size), dtype_bytes(dtype)
    extents = zip(size["shape"], size["kernel"], *(_triple(size[k]) for k in ("stride", "dilation")), strict=True)
    padding = _triple(size["paddings"][0])
    positions = prod((n + 2 * p - d * (k - 1) - 1) // s + 1 for (n, k, s, d), p in zip(extents, padding, strict=True))
    out = size["batch"] * size["out"] * positions
    taps = channels // size["groups"] * prod(size["kernel"])
    passes = min(2 * (world_size - 1) / world_size, 1 + 1 / world_size)
    read = size["batch"] * channels * prod(size["shape"]) + size["out"] * taps
    return Cost(link_bytes=passes * out * num_bytes, hbm_bytes=(read + 2 * out) * num_bytes, flops=2 * taps * out)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    biases = [one[2] for one in inputs_of_all_ranks]
    partial = [_partial(one) for one in inputs_of_all_ranks]

    def answers(parts: list[torch.Tensor]) -> list[torch.Tensor]:
        return [_with_bias(_total(parts), bias) for bias in biases]

    def convolved(change: Any) -> list[torch.Tensor]:
        """With other inputs and weights."""
        return answers([_partial((*change(x, weight), *rest)) for x, weight, *rest in inputs_of_all_ranks])

    yield "bias left out", [_total(partial)] * world_size
    yield "kernel flipped", convolved(lambda x, w: (x, w.flip(2, 3, 4)))
    yield "height and width of the kernel exchanged", convolved(lambda x, w: (x, w.transpose(3, 4)))
    yield "last tap left out", convolved(lambda x, w: (x, _without_last_tap(w)))
    yield "last channel left out", convolved(lambda x, w: (torch.cat([x[:, :-1], 0 * x[:, -1:]], dim=1), w))
    yield "input channels backwards", convolved(lambda x, w: (x.flip(1), w))
    padding = _triple(inputs_of_all_ranks[0][4])
    if any(padding):
        sides = [side for p in reversed(padding) for side in (p, p)]
        yield (
            "padded by the nearest value",
            answers(
                [
                    _partial((F.pad(x.double(), sides, mode="replicate"), w, b, stride, 0, *rest))
                    for x, w, b, stride, _, *rest in inputs_of_all_ranks
                ]
            ),
        )
    if (inputs_of_all_ranks[0][6:] or (1,))[0] > 1:
        dealt = [
            (x.unflatten(1, (-1, one[6])).transpose(1, 2).flatten(1, 2), *rest)
            for one in inputs_of_all_ranks
            for x, *rest in [one]
        ]
        yield "channels dealt out to groups", answers([_partial(one) for one in dealt])
    if world_size == 1:
        return
    yield "own partial sums", [_with_bias(part, bias) for part, bias in zip(partial, biases, strict=True)]
    yield "one rank left out", answers(partial[:-1])
    yield "mean over ranks", answers([part / world_size for part in partial])
    if biases[0] is not None:
        added = [_with_bias(part, bias) for part, bias in zip(partial, biases, strict=True)]
        yield "biases of all ranks added", [_total(added)] * world_size
        yield "bias added W times", [_with_bias(_total(partial), world_size * bias) for bias in biases]
        yield "bias of rank 0 for all", [expected[0]] * world_size


def _partial(arguments: tuple[Any, ...]) -> torch.Tensor:
    """conv3d of one rank: for each tap of the kernel, a product of matrices with the inputs that it meets."""
    x, weight, _, stride, padding, dilation, *rest = arguments
    groups = rest[0] if rest else 1
    strides, dilations = _triple(stride), _triple(dilation)
    padded = F.pad(x.double(), [side for p in reversed(_triple(padding)) for side in (p, p)])
    kernel, extents = weight.shape[2:], padded.shape[2:]
    positions = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(extents, kernel, strides, dilations, strict=True)]
    filters = weight.double().view(groups, -1, *weight.shape[1:])
    total: Any = 0
    for tap in product(*map(range, kernel)):
        window = [
            slice(t * d, t * d + (m - 1) * s + 1, s)
            for t, d, m, s in zip(tap, dilations, positions, strides, strict=True)
        ]
        met = padded[:, :, *window].reshape(len(x), groups, -1, prod(positions))
        total = total + filters[..., tap[0], tap[1], tap[2]] @ met
    result: torch.Tensor = total.reshape(len(x), -1, *positions)
    return result


def _total(parts: list[torch.Tensor]) -> torch.Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def _with_bias(total: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return total if bias is None else total + bias.double()[:, None, None, None]


def _without_last_tap(weight: torch.Tensor) -> torch.Tensor:
    kept = weight.clone()
    kept[..., -1, -1, -1] = 0
    return kept


def _triple(value: int | Triple) -> Triple:
    return (value, value, value) if isinstance(value, int) else value


def _channels(size: Size, world_size: int) -> int:
    return int(size["channels"] // world_size if "channels" in size else size["channels_per_rank"])
