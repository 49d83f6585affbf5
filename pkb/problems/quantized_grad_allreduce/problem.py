"""Judge's side of quantized_grad_allreduce.

Scales and quotients are float32 values by contract. The oracle gets them from float64: a quotient of two float32
numbers in float64, rounded to float32, is the one that IEEE 754 demands.

The catalogue expects a block of about 1e-9 to come out as 0; by its formula it does not (q is about 13). Here block 1
is of that size, and its few steps tell whether the floor of the scale is there; block 2 is of 1e-12 and gives 0. The
last block is small, so that the scale of its neighbor would leave nothing of it. All of these are judged as regions of
their own, since their errors disappear in the norm of the whole.
The catalogue allows 1e-3 in fp32, which lets operands rounded to TF32 pass. Since the contract fixes every rounding up
to the sum, 1e-4 still leaves room for a few codes that differ by one in a large gradient.
`tiny_ties` is not in the catalogue: with random values no quotient lies in the middle between two integers, so
neither a reciprocal nor another rounding of halves would show.
"""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import torch

from pkb.problems._check import Expected, Region, relative
from pkb.problems._draw import Draw, keep_first
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# `shapes` and `blocks` are taken in turn, by draw.
PROBLEM = Problem(
    number=44,
    group="quantization",
    parallelism="dp",
    origin="int8 block-quantized gradient communication as in ZeRO++ (qgZ) and its relatives",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"shapes": ((33, 29), (2000,), (5, 7, 31)), "blocks": (32, 128, 16)},
        "tiny_ties": {"shapes": ((41, 25), (1500,)), "blocks": (32, 64), "ties": True},
        "base": {"shapes": ((1048576,),), "blocks": (128,)},
        "large": {"shapes": ((134217728,),), "blocks": (128,)},
    },
    check=relative(bf16=5e-3, fp32=1e-4),
    agree=True,
)

FLOOR = 1e-8
"""Least maximum of a block that a scale is made from."""

Quantizer = Callable[[torch.Tensor, int], torch.Tensor]
"""x~ in float64 of a flat float32 vector with a block size."""


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor, int]:
    shape, block_size = _form(size, draw.index)
    num_elems = prod(shape)
    num_blocks = -(-num_elems // block_size)
    x = _tied(draw, num_blocks, block_size) if size.get("ties", False) else _with_outliers(draw, num_blocks, block_size)
    x[0] = 0.0
    for block, scale in ((1, 1e-9), (2, 1e-12)):
        x[block] = draw.normal(block_size).float() * scale
    # So small that nothing of it is left under the scale of the block before.
    x[-1] *= 2.0**-10
    return x.flatten()[:num_elems].to(draw.dtype).view(shape).clone(), block_size


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Expected]:
    flat_grad, block_size = inputs_of_all_ranks[0]
    mean = _mean(inputs_of_all_ranks, _dequantized)
    last = (mean.numel() - 1) // block_size
    names = {0: "zeros", 1: "block below the floor", 2: "block far below the floor", last: "last block"}
    regions = []
    for block, name in names.items():
        mask = torch.zeros(mean.numel(), dtype=torch.bool, device=flat_grad.device)
        mask[block * block_size : (block + 1) * block_size] = True
        regions.append(Region(name, mask.view(flat_grad.shape)))
    return [Expected(mean, regions=tuple(regions))] * world_size


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Codes and scales go to everyone at once; or each to the owner of its segment, who sends the rounded mean on. In
    # memory the gradient is read, the result written, and the codes are written and read.
    shape, block_size = _form(size, 0)
    num_elems, num_bytes = prod(shape), dtype_bytes(dtype)
    code = 1 + 4 / block_size
    return Cost(
        link_bytes=min((world_size - 1) * code, (world_size - 1) / world_size * (code + num_bytes)) * num_elems,
        hbm_bytes=(2 * num_bytes + 2 * code) * num_elems,
        flops=5 * num_elems,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size, block_size = len(expected), inputs_of_all_ranks[0][1]
    mean = expected[0].value
    for name, quantizer in _wrong_quantizers(world_size).items():
        yield name, [_mean(inputs_of_all_ranks, quantizer)] * world_size
    if _has_ties(inputs_of_all_ranks[0][0]):
        yield "halves away from zero", [_mean(inputs_of_all_ranks, _away_from_zero)] * world_size
        yield "product with a reciprocal", [_mean(inputs_of_all_ranks, _by_reciprocal)] * world_size
    else:
        doubled = [(x, 2 * block_size) for x, _ in inputs_of_all_ranks]
        yield "blocks of twice the size", [_mean(doubled, _dequantized)] * world_size
    if mean.dim() > 1:
        turned = [(x.movedim(0, -1).contiguous(), block_size) for x, _ in inputs_of_all_ranks]
        yield "blocks in another order of elements", [_mean(turned, _dequantized).movedim(-1, 0)] * world_size
    if mean.numel() % block_size:
        short = mean.flatten().clone()
        short[-(mean.numel() % block_size) :] = 0.0
        yield "short last block left out", [short.view(mean.shape)] * world_size
    if world_size == 1:
        return
    again = _dequantized(mean.float().flatten(), block_size).view(mean.shape)
    yield "mean quantized again", [again] * world_size
    yield "sum in place of the mean", [mean * world_size] * world_size
    yield "own gradient alone", [_mean([one], _dequantized) for one in inputs_of_all_ranks]
    joined = torch.stack([x.float() for x, _ in inputs_of_all_ranks]).mean(dim=0)
    yield "mean taken before quantizing", [_dequantized(joined.flatten(), block_size).view(mean.shape)] * world_size


def _form(size: Size, index: int) -> tuple[tuple[int, ...], int]:
    which = index % len(size["shapes"])
    return size["shapes"][which], size["blocks"][which]


def _with_outliers(draw: Draw, num_blocks: int, block_size: int) -> torch.Tensor:
    """Normal values of a size that differs by block, one of them ten times the others' maximum."""
    x = draw.normal(num_blocks, block_size).float() * draw.integers(-3, 4, num_blocks, 1).float().exp2()
    place = draw.integers(0, block_size, num_blocks, 1)
    return x.scatter_(1, place, 10 * x.abs().amax(dim=1, keepdim=True))


def _tied(draw: Draw, num_blocks: int, block_size: int) -> torch.Tensor:
    """Blocks in turn of halves of their maximum, and of halves between integers where the scale is a power of two."""
    signs = draw.integers(0, 2, num_blocks, block_size) * 2 - 1
    exponent = draw.integers(-3, 4, num_blocks, 1).float().exp2()
    # Maximums whose half, over the scale, rounds to another integer if it is multiplied by the reciprocal: a fifth.
    spares = draw.uniform(64.0, 127.0, 20 * num_blocks + 500).to(draw.dtype).float()
    scales = (spares.double() / 127.0).float()
    flips = _quotients(spares / 2, scales).round() != (spares / 2 * (1.0 / scales)).round()
    largest = keep_first(num_blocks, flips, spares)[0].unsqueeze(1)
    halves = (largest / 2).expand(-1, block_size).clone()
    between = draw.integers(0, 63, num_blocks, block_size) * 2 + 0.5
    is_half = torch.arange(num_blocks, device=draw.device).unsqueeze(1) % 2 == 0
    values = torch.where(is_half, halves, between)
    values[:, :1] = torch.where(is_half, largest, 127.0)
    return values * signs * exponent


def _mean(inputs_of_all_ranks: list[tuple[Any, ...]], quantizer: Quantizer) -> torch.Tensor:
    shape = inputs_of_all_ranks[0][0].shape
    total = sum(quantizer(x.float().flatten(), block_size) for x, block_size in inputs_of_all_ranks)
    return (torch.as_tensor(total) / len(inputs_of_all_ranks)).view(shape)


def _scales(x: torch.Tensor, block_size: int, floor: float = FLOOR) -> torch.Tensor:
    """The scale of every element, float32."""
    largest = torch.zeros(-(-len(x) // block_size), device=x.device)
    block = torch.arange(len(x), device=x.device) // block_size
    largest.scatter_reduce_(0, block, x.abs(), reduce="amax")
    least = torch.tensor(floor, dtype=torch.float32, device=x.device)
    return (torch.maximum(largest, least).double() / 127.0).float()[block]


def _quotients(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """x / s as float32 division gives it, float64."""
    return (x.double() / scales.double()).float().double()


def _dequantized(x: torch.Tensor, block_size: int, floor: float = FLOOR) -> torch.Tensor:
    scales = _scales(x, block_size, floor)
    return _quotients(x, scales).round().clamp(-127, 127) * scales.double()


def _away_from_zero(x: torch.Tensor, block_size: int) -> torch.Tensor:
    scales = _scales(x, block_size)
    quotients = _quotients(x, scales)
    return quotients.sign() * (quotients.abs() + 0.5).floor().clamp_max(127) * scales.double()


def _by_reciprocal(x: torch.Tensor, block_size: int) -> torch.Tensor:
    scales = _scales(x, block_size)
    return (x * (1.0 / scales)).round().clamp(-127, 127).double() * scales.double()


def _truncated(x: torch.Tensor, block_size: int) -> torch.Tensor:
    scales = _scales(x, block_size)
    return _quotients(x, scales).trunc() * scales.double()


def _wrong_quantizers(world_size: int) -> dict[str, Quantizer]:
    def in_segments(x: torch.Tensor, block_size: int) -> torch.Tensor:
        return torch.cat([_dequantized(part, block_size) for part in x.chunk(world_size)])

    def joining_short_block(x: torch.Tensor, block_size: int) -> torch.Tensor:
        whole = len(x) // block_size * block_size
        tail = _dequantized(x[whole - block_size :], 2 * block_size)[block_size:]
        return torch.cat((_dequantized(x[:whole], block_size), tail))

    found: dict[str, Quantizer] = {
        "not quantized": lambda x, block_size: x.double(),
        "truncated": _truncated,
        "128 steps": lambda x, block_size: (
            (x.double() / (s := _scales(x, block_size).double() * 127 / 128)).round() * s
        ),
        "no floor of the scale": lambda x, block_size: _dequantized(x, block_size, floor=0.0),
        "floor far too low": lambda x, block_size: _dequantized(x, block_size, floor=1e-30),
        "one scale for everything": lambda x, block_size: _dequantized(x, len(x)),
        "short last block scaled with its neighbor": joining_short_block,
    }
    if world_size > 1:
        found["blocks begun at the borders of W segments"] = in_segments
    return found


def _has_ties(x: torch.Tensor) -> bool:
    """Every other block holds one magnitude, half of its maximum, nearly everywhere: inputs made of halves."""
    magnitudes = x.float().abs().flatten()
    return 2 * int((magnitudes[1:] == magnitudes[:-1]).sum()) > magnitudes.numel() // 2
