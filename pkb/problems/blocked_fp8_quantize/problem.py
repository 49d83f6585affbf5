"""Judge's side of blocked_fp8_quantize.

The kinds of blocks (zeros, one outlier, ordinary) move with rank and draw. Codes are judged one by one, and by their
relative error only after that, so no tolerance is reported: the norm of codes says less than their number.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from pkb.problems._check import Bound, Expected, every, mostly_equal, relative, within
from pkb.problems._draw import Draw
from pkb.problems._fp8 import MAX_CODE, cut_to_e4m3, in_blocks, nearest_e4m3, quotient
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

PROBLEM = Problem(
    number=19,
    group="quantization",
    parallelism="dp / ep",
    origin="DeepSeek-V3 activation quantization (1 x 128 blocks, e4m3) before communication",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"shape": (6, 96), "block_size": 32},
        "tiny_3d": {"shape": (3, 5, 256), "block_size": 128},
        "tiny_1d": {"shape": (144,), "block_size": 16},
        "base": {"shape": (1024, 1024), "block_size": 128},
        "large": {"shape": (16384, 7168), "block_size": 128},
    },
    check=every(mostly_equal(share=5e-3, codes=1), relative(bf16=1e-2, fp32=1e-2)),
)

DEFAULT_BLOCK_SIZE = 128

ENOUGH = 500
"""From so many elements on, the share of codes that a reciprocal in bf16 changes shows for certain."""

# An approximate division in float32 may be used for the scale.
SCALES = within(Bound(rel=1e-6))


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    shape, block_size = size["shape"], size["block_size"]
    x = in_blocks(draw.normal(*shape).float(), block_size)
    kind = (torch.arange(prod(x.shape[:-1]), device=draw.device).view(x.shape[:-1]) + draw.rank + draw.index) % 5
    factor = (3 * draw.normal(*x.shape[:-1], 1).float()).exp()
    # At least 2^-60: smaller quotients than that say more of denormals than of quantization.
    x = torch.where((kind == 0).unsqueeze(-1), 0.0, x * factor.clamp_min(2.0**-50))
    place = draw.integers(0, block_size, *x.shape[:-1], 1)
    is_outlier = torch.zeros_like(x, dtype=torch.bool).scatter_(-1, place, True) & (kind == 1).unsqueeze(-1)
    sign = torch.where(place % 2 == 0, 3e4, -3e4)
    x = torch.where(is_outlier, sign, x).to(draw.dtype).view(shape)
    return (x,) if block_size == DEFAULT_BLOCK_SIZE and draw.index % 2 == 1 else (x, block_size)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[tuple[Expected, Expected]]:
    # Rank by rank, as float64 of all of them takes much memory.
    parts = [_quantized(x, block_size) for x, block_size in _options(inputs_of_all_ranks)]
    return [_joined(parts)] * world_size


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Codes of one byte and a float32 scale for each block arrive from all peers; the input is read once, codes and
    # scales of all ranks are written once. Maximum, quotient and rounding are one operation each.
    num_elems = prod(size["shape"])
    code_bytes = num_elems * (1 + 4 / size["block_size"])
    return Cost(
        link_bytes=(world_size - 1) * code_bytes,
        hbm_bytes=num_elems * dtype_bytes(dtype) + world_size * code_bytes,
        flops=3 * num_elems,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    codes, scales = (leaf.value for leaf in expected[0])
    options = _options(inputs_of_all_ranks)
    parts = [_quantized(x, block_size) for x, block_size in options]

    def answers(wrong: list[tuple[torch.Tensor, torch.Tensor]]) -> list[Any]:
        return [_joined(wrong)] * world_size

    yield "codes cut off, not rounded", answers([(_cut(x, s, b), s) for (x, b), (_, s) in _with(options, parts)])
    yield "240 in place of 448", answers([_quantized(x, b, 240.0) for x, b in options])
    yield "127 in place of 448", answers([_quantized(x, b, 127.0) for x, b in options])
    if options[0][0].numel() >= ENOUGH:
        products = [(_times_reciprocal(x, s, b), s) for (x, b), (_, s) in _with(options, parts)]
        yield "product with a reciprocal in bf16", answers(products)
    is_zero = (scales == 0).repeat_interleave(options[0][1], dim=-1)
    yield "NaN for a block of zeros", [_pair(codes.float().masked_fill(is_zero, float("nan")), scales)] * world_size
    yield "scale 1 for a block of zeros", [_pair(codes, torch.where(scales == 0, 1.0, scales))] * world_size
    yield "one scale a row", answers([_one_scale_a_row(x, b) for x, b in options])
    yield "blocks begin half a block later", answers([_shifted(x, b) for x, b in options])
    yield "scales in bf16", [_pair(codes, scales.bfloat16().double())] * world_size
    yield "inverse scales", [_pair(codes, torch.where(scales == 0, 0.0, 1 / scales))] * world_size
    if world_size == 1:
        return
    yield "ranks by descending number", answers(parts[::-1])
    yield "own part on every rank", [_joined([part] * world_size) for part in parts]
    yield "scales of another rank", answers([(y, parts[r - 1][1]) for r, (y, _) in enumerate(parts)])
    in_order_of_arrival = [_joined(parts[r:] + parts[:r]) for r in range(world_size)]
    yield "ranks in order of arrival", in_order_of_arrival


def _options(inputs_of_all_ranks: list[tuple[Any, ...]]) -> list[tuple[torch.Tensor, int]]:
    return [(x, rest[0] if rest else DEFAULT_BLOCK_SIZE) for x, *rest in inputs_of_all_ranks]


def _with(options: list[Any], parts: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(options, parts, strict=True)


def _quantized(x: torch.Tensor, block_size: int, most: float = MAX_CODE) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (float8) and scales (float64) of one rank, the largest code being `most`."""
    blocks = in_blocks(x.double(), block_size)
    scales = blocks.abs().amax(dim=-1) / most
    divisors = torch.where(scales == 0, 1.0, scales).float().unsqueeze(-1)
    codes = nearest_e4m3(quotient(blocks, divisors))
    return codes.to(torch.float8_e4m3fn).view(x.shape), scales


def _joined(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[Expected, Expected]:
    # Bytes are joined: not every device joins float8.
    codes = torch.cat([y.view(torch.uint8) for y, _ in parts]).view(torch.float8_e4m3fn)
    return _pair(codes, torch.cat([s for _, s in parts]))


def _pair(codes: torch.Tensor, scales: torch.Tensor) -> tuple[Expected, Expected]:
    return Expected(codes.to(torch.float8_e4m3fn)), Expected(scales, torch.float32, SCALES)


def _cut(x: torch.Tensor, scales: torch.Tensor, block_size: int) -> torch.Tensor:
    divisors = torch.where(scales == 0, 1.0, scales).float().unsqueeze(-1)
    return cut_to_e4m3(quotient(in_blocks(x, block_size), divisors)).to(torch.float8_e4m3fn).view(x.shape)


def _times_reciprocal(x: torch.Tensor, scales: torch.Tensor, block_size: int) -> torch.Tensor:
    reciprocals = torch.where(scales == 0, 1.0, 1 / scales).bfloat16().unsqueeze(-1)
    product = in_blocks(x.bfloat16(), block_size) * reciprocals
    return nearest_e4m3(product.double().clamp(-MAX_CODE, MAX_CODE)).to(torch.float8_e4m3fn).view(x.shape)


def _one_scale_a_row(x: torch.Tensor, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    codes, scales = _quantized(x, x.shape[-1])
    return codes, scales.expand(*scales.shape[:-1], x.shape[-1] // block_size)


def _shifted(x: torch.Tensor, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks of the flat tensor from the middle of one block to that of the next, so across rows."""
    moved = x.flatten().roll(-(block_size // 2))
    codes, scales = _quantized(moved, block_size)
    back = codes.view(torch.uint8).roll(block_size // 2).view(torch.float8_e4m3fn)
    return back.view(x.shape), scales.view(*x.shape[:-1], -1)
