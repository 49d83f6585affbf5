"""Judge's side of blocked_fp8_dequantize.

A quarter of the codes is drawn from all 254 finite ones at every size, and a quarter of the scales is negative: the
contract allows both, and N(0, 1) alone shows neither. In `tiny` sizes the dtypes of codes and scales take turns with
the draw; "working" stands for the working dtype.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from pkb.problems._check import Expected, exact_values, relative
from pkb.problems._draw import Draw
from pkb.problems._fp8 import MAX_CODE, in_blocks, nearest_e4m3
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# `chunk` is the shape of a chunk; of `rows_of_all` each chunk has a W-th.
PROBLEM = Problem(
    number=20,
    group="quantization",
    parallelism="ep / dp",
    origin="DeepSeek-V3 weight / activation dequantization, after a quantized exchange",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"chunk": (4, 96), "block_size": 32, "kinds": ("e4m3", "e4m3_bf16", "working")},
        "tiny_3d": {"chunk": (3, 2, 256), "block_size": 128, "kinds": ("working", "e4m3", "half")},
        "tiny_across_rows": {"chunk": (8, 20), "block_size": 16, "kinds": ("e4m3_bf16", "half", "e4m3")},
        "base": {"chunk": (1024, 1024), "block_size": 128, "kinds": ("working",)},
        "base_e4m3": {"chunk": (1024, 1024), "block_size": 128, "kinds": ("e4m3",)},
        "large": {"rows_of_all": 32768, "chunk": (7168,), "block_size": 128, "kinds": ("e4m3",)},
    },
    check=exact_values(),
)

DEFAULT_BLOCK_SIZE = 128


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    world_size, block_size = draw.world_size, size["block_size"]
    chunk = _chunk(size, world_size)
    kind = size["kinds"][draw.index % len(size["kinds"])]
    num_blocks = prod(chunk) // block_size
    if kind == "working":
        y, s = draw.normal(world_size, *chunk), draw.normal(world_size, num_blocks)
    else:
        y = _codes(draw, world_size, *chunk)
        if kind == "half":
            y = (y.float() / 16).half()
        s = (1 + draw.rank) / MAX_CODE * (2 * draw.normal(world_size, num_blocks).float()).exp()
        s = torch.where(draw.uniform(0.0, 1.0, world_size, num_blocks) < 0.25, -s, s)
        s = s.to(torch.bfloat16 if kind == "e4m3_bf16" else torch.float32)
    # One block of each chunk.
    s.scatter_(1, draw.integers(0, num_blocks, world_size, 1), 0.0)
    return (y, s) if block_size == DEFAULT_BLOCK_SIZE and draw.index % 2 == 1 else (y, s, block_size)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Expected]:
    return [
        _stacked([(y[rank], s[rank]) for y, s, *_ in inputs_of_all_ranks], inputs_of_all_ranks)
        for rank in range(world_size)
    ]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Codes and scales of all chunks but the own one travel; everything is read once, all products are written once.
    kind = size["kinds"][0]
    code_bytes = dtype_bytes(dtype) if kind == "working" else 1
    scale_bytes = dtype_bytes(dtype) if kind == "working" else 2 if kind == "e4m3_bf16" else 4
    num_elems = world_size * prod(_chunk(size, world_size))
    num_bytes = num_elems * (code_bytes + scale_bytes / size["block_size"])
    return Cost(
        link_bytes=num_bytes * (world_size - 1) / world_size, hbm_bytes=num_bytes + 4 * num_elems, flops=num_elems
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    ranks = range(world_size)
    sent = [list(zip(y, s, strict=True)) for y, s, *_ in inputs_of_all_ranks]

    def answers(chunks: list[list[tuple[torch.Tensor, torch.Tensor]]]) -> list[Expected]:
        return [_stacked(received, inputs_of_all_ranks) for received in chunks]

    received = [[sent[s][r] for s in ranks] for r in ranks]
    by_row = [[(y, _by_row(y, s)) for y, s in chunks] for chunks in received]
    yield "scale of the row in place of the block", answers(by_row)
    yield "scales of the next block", answers([[(y, s.roll(1)) for y, s in chunks] for chunks in received])
    yield "magnitude of the scale alone", answers([[(y, s.abs()) for y, s in chunks] for chunks in received])
    yield "product in bf16", [Expected(one.value.bfloat16().float()) for one in expected]
    inverse = [[(y, torch.where(s == 0, 0.0, 1 / s)) for y, s in chunks] for chunks in received]
    yield "divided by the scale", answers(inverse)
    if inputs_of_all_ranks[0][0].dtype.itemsize == 1:
        others = {"e5m2": torch.float8_e5m2, "e4m3fnuz": torch.float8_e4m3fnuz, "int8": torch.int8}
        for name, dtype in others.items():
            yield f"codes read as {name}", answers([[(y.view(dtype), s) for y, s in c] for c in received])
    if world_size == 1:
        return
    yield "scales of the receiver", answers([[(sent[s][r][0], sent[r][s][1]) for s in ranks] for r in ranks])
    yield "chunks kept, not exchanged", answers(sent)
    yield "scales kept, not exchanged", answers([[(sent[s][r][0], sent[r][r][1]) for s in ranks] for r in ranks])
    yield "sources by descending rank", answers([chunks[::-1] for chunks in received])
    if world_size > 2:
        yield "sources in order of arrival", answers([chunks[r:] + chunks[:r] for r, chunks in enumerate(received)])


def _stacked(chunks: list[tuple[torch.Tensor, torch.Tensor]], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Expected:
    """Products of chunks with their scales. A product of float32 numbers has one value: float64 holds it exactly."""
    block_size = (*inputs_of_all_ranks[0], DEFAULT_BLOCK_SIZE)[2]
    parts = []
    for y, s in chunks:
        flat = y.flatten().double()
        parts.append((in_blocks(flat, block_size) * s.double().unsqueeze(-1)).float().view(y.shape))
    values = torch.stack(parts)
    if chunks[0][0].dtype != torch.float32:
        return Expected(values)
    return Expected(values.double(), torch.float32, relative(bf16=1e-6, fp32=1e-6))


def _by_row(y: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """The scale whose number is the row of the block's first element."""
    first = torch.arange(len(s), device=s.device) * (y.numel() // len(s))
    return s[(first // y.shape[-1]) % len(s)]


def _codes(draw: Draw, *shape: int) -> torch.Tensor:
    """e4m3 numbers of N(0, 90^2), a quarter of them from all finite codes: subnormal ones and both zeros too."""
    normal = nearest_e4m3(draw.normal(*shape).float().mul_(90).clamp_(-MAX_CODE, MAX_CODE)).to(torch.float8_e4m3fn)
    code = draw.integers(0, 254, *shape)
    # 127 and 255 are NaN.
    any_code = (code + (code >= 127)).to(torch.uint8)
    return torch.where(draw.uniform(0.0, 1.0, *shape) < 0.25, any_code, normal.view(torch.uint8)).view(
        torch.float8_e4m3fn
    )


def _chunk(size: Size, world_size: int) -> tuple[int, ...]:
    chunk: tuple[int, ...] = size["chunk"]
    return (size["rows_of_all"] // world_size, *chunk) if "rows_of_all" in size else chunk
