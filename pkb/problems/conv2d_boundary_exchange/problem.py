"""Judge's side of conv2d_boundary_exchange.

The baseline exchanges rows with the neighbors, where the catalogue's gathers those of all ranks. Regions are the output
rows that touch a halo, which with a stride are fewer than the catalogue's first and last `padding` rows.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from pkb.problems._check import Expected, Region, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# `options` are (kernel, stride, padding), one of them by draw. Ranks have `height` rows, in tiny sizes 2 more on every
# other rank; with `shrinking` the height is divided by W / 2.
PROBLEM = Problem(
    number=87,
    group="convolution",
    parallelism="spatial (patch)",
    origin="DistriFusion / xDiT patch-parallel convolution",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"channels": 4, "out": 5, "height": 4, "width": 9, "options": ((3, 1, 1), (5, 1, 2), (4, 2, 1))},
        "tiny_strided": {"channels": 4, "out": 5, "height": 4, "width": 9, "options": ((3, 2, 1), (1, 1, 0))},
        "base": {
            "channels": 1280,
            "out": 1280,
            "height": 128,
            "width": 128,
            "shrinking": True,
            "options": ((3, 1, 1),),
        },
        "large": {"channels": 512, "out": 512, "height": 128, "width": 1024, "options": ((3, 1, 1),)},
    },
    check=relative(bf16=1e-2, fp32=2e-3),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    index, is_tiny = draw.index, size["height"] < 8
    kernel, stride, padding = size["options"][index % len(size["options"])]
    channels = size["channels"]
    height = _height(size, draw.world_size) + (2 * ((draw.rank + index) % 2) if is_tiny else 0)
    x = draw.normal(1 + index % 2 if is_tiny else 1, channels, height, size["width"])
    weight = draw.normal(size["out"], channels, kernel, kernel, scale=(channels * kernel**2) ** -0.5)
    bias = draw.normal(size["out"])
    arguments = (x, weight, None if is_tiny and index % 4 == 2 else bias)
    if (stride, padding) == (1, 1) and index % 2 == 0:
        return arguments
    if index % 3 == 0:
        return (*arguments, stride, padding)
    return (*arguments, stride, padding, Group.whole(draw.world_size) if index % 3 == 1 else None)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Expected]:
    stride, padding = _options(inputs_of_all_ranks)
    regions = [_regions(x.shape[2], weight.shape[2], stride, padding) for x, weight, *_ in inputs_of_all_ranks]
    above, below = _halos(inputs_of_all_ranks, padding)
    outs = _answer(inputs_of_all_ranks, above, below)
    return [Expected(out, regions=of_rank) for out, of_rank in zip(outs, regions, strict=True)]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Rows for each neighbor: an inner rank has two. Image, weight and output are touched once.
    kernel, stride, padding = size["options"][0]
    channels, height, width, out = size["channels"], _height(size, world_size), size["width"], size["out"]
    batch, num_bytes = 1.5 if height < 8 else 1, dtype_bytes(dtype)
    num_pixels = (
        batch * ((height + 2 * padding - kernel) // stride + 1) * ((width + 2 * padding - kernel) // stride + 1)
    )
    num_weights = out * channels * kernel**2
    return Cost(
        link_bytes=min(2, world_size - 1) * batch * channels * padding * width * num_bytes,
        hbm_bytes=(batch * channels * height * width + num_weights + out * num_pixels) * num_bytes,
        flops=2 * num_weights * num_pixels,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size, calls = len(expected), [one[:3] for one in inputs_of_all_ranks]
    ranks = range(world_size)
    stride, padding = _options(inputs_of_all_ranks)
    above, below = _halos(inputs_of_all_ranks, padding)

    def answer(above: list[torch.Tensor], below: list[torch.Tensor], calls: Any = calls) -> list[torch.Tensor]:
        return _answer([(*one, stride, padding) for one in calls], above, below)

    if calls[0][1].shape[-1] > 1:
        yield "kernel flipped", answer(above, below, [(x, w.flip(-2, -1), b) for x, w, b in calls])
        yield "kernel transposed", answer(above, below, [(x, w.mT, b) for x, w, b in calls])
    if calls[0][2] is not None:
        yield "bias left out", answer(above, below, [(x, w, None) for x, w, _ in calls])
        yield "bias twice", answer(above, below, [(x, w, 2 * b) for x, w, b in calls])
    if padding > 0:
        edge = [x[:, :, :1].double().expand_as(one) for (x, *_), one in zip(calls, above, strict=True)]
        yield "first row repeated at the image's edge", answer([edge[0], *above[1:]], below)
        yield "image closed to a ring", answer([_last(calls[-1][0], padding), *above[1:]], below)
        inside = [(_framed(x, padding), w, b) for x, w, b in calls]
        yield "outermost rows taken for zeros", answer(above, below, inside)
    if world_size == 1:
        return
    if padding > 0:
        nothing = [torch.zeros_like(one) for one in above]
        yield "zeros in place of halos", answer(nothing, nothing)
        yield "rows from above alone", answer(above, nothing)
        yield "rows from below alone", answer(nothing, below)
        yield "halos exchanged", answer(below, above)
        firsts, lasts = [x[:, :, :padding].double() for x, *_ in calls], [_last(x, padding) for x, *_ in calls]
        yield "the neighbors' far rows", answer([nothing[0], *firsts[:-1]], [*lasts[1:], nothing[0]])
        yield "own rows in place of halos", answer(firsts, lasts)
        yield "ring of ranks", answer([lasts[r - 1] for r in ranks], [firsts[(r + 1) % world_size] for r in ranks])
    if padding > 1:
        yield "rows of a halo reversed", answer([one.flip(2) for one in above], [one.flip(2) for one in below])
    yield "rank 0's weight", answer(above, below, [(x, calls[0][1], b) for x, _, b in calls])
    if calls[0][2] is not None:
        yield "rank 0's bias", answer(above, below, [(x, w, calls[0][2]) for x, w, _ in calls])
        total = torch.stack([b.double() for *_, b in calls]).sum(dim=0)
        yield "sum of all biases", answer(above, below, [(x, w, total) for x, w, _ in calls])


def _options(inputs_of_all_ranks: list[tuple[Any, ...]]) -> tuple[int, int]:
    """Stride and padding."""
    _, _, _, *optional = inputs_of_all_ranks[0]
    return (optional[0], optional[1]) if optional else (1, 1)


def _halos(inputs_of_all_ranks: list[tuple[Any, ...]], padding: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Rows above and below each rank's own, float64."""
    xs = [one[0] for one in inputs_of_all_ranks]
    nothing = torch.zeros_like(xs[0][:, :, :padding], dtype=torch.float64)
    return [nothing, *(_last(x, padding) for x in xs[:-1])], [*(x[:, :, :padding].double() for x in xs[1:]), nothing]


def _last(x: torch.Tensor, padding: int) -> torch.Tensor:
    return x[:, :, x.shape[2] - padding :].double()


def _framed(x: torch.Tensor, padding: int) -> torch.Tensor:
    """The rows with zeros for the first and the last ones."""
    result = x.clone()
    result[:, :, :padding] = 0
    result[:, :, x.shape[2] - padding :] = 0
    return result


def _answer(
    inputs_of_all_ranks: list[tuple[Any, ...]], above: list[torch.Tensor], below: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Each rank's convolution behind the given rows, as a sum of products for each place of the kernel."""
    stride, padding = _options(inputs_of_all_ranks)
    outs = []
    for (x, weight, bias, *_), first, last in zip(inputs_of_all_ranks, above, below, strict=True):
        slab = F.pad(torch.cat((first, x.double(), last), dim=2), (padding, padding))
        kh, kw = weight.shape[2:]
        height, width = ((slab.shape[2 + i] - k) // stride + 1 for i, k in enumerate((kh, kw)))
        out = slab.new_zeros(x.shape[0], weight.shape[0], height * width)
        for place in range(kh * kw):
            i, j = divmod(place, kw)
            seen = slab[:, :, i : i + stride * (height - 1) + 1 : stride, j : j + stride * (width - 1) + 1 : stride]
            out += weight[:, :, i, j].double() @ seen.flatten(2)
        if bias is not None:
            out += bias.double()[:, None]
        outs.append(out.view(x.shape[0], -1, height, width))
    return outs


def _regions(height: int, kernel: int, stride: int, padding: int) -> tuple[Region, ...]:
    """Output rows that touch a halo."""
    if padding == 0:
        return ()
    num_rows = (height + 2 * padding - kernel) // stride + 1
    top = -(-padding // stride)
    bottom = max(0, (padding + height - kernel) // stride + 1)
    regions = [Region("rows at the upper halo", (..., slice(0, top), slice(None)))]
    if bottom < num_rows:
        regions.append(Region("rows at the lower halo", (..., slice(bottom, num_rows), slice(None))))
    return tuple(regions)


def _height(size: Size, world_size: int) -> int:
    return int(size["height"] // max(1, world_size // 2) if size.get("shrinking", False) else size["height"])
