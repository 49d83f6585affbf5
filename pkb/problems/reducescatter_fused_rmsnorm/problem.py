"""Judge's side of reducescatter_fused_rmsnorm.

The row of zeros that the catalogue asks for is row 0 of every chunk, so that every rank has one. The baseline's norm is
PyTorch's own `rms_norm` (float32 inside) in place of five kernels.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import blocks, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# `rows_per_rank` counts the rows of a chunk, `rows` those of all chunks. Where `fewest_chunks` stands, that many share
# `rows` on fewer ranks too.
PROBLEM = Problem(
    number=45,
    group="norm",
    parallelism="tp",
    origin="fused reduce-scatter + RMSNorm of tensor-parallel inference engines (FlashInfer, TensorRT-LLM, vLLM)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"rows_per_rank": 7, "hidden": 48},
        "tiny_odd": {"rows_per_rank": 5, "hidden": 33},
        "base": {"rows": 1024, "fewest_chunks": 4, "hidden": 128},
        "large": {"rows": 16384, "hidden": 8192},
    },
    check=relative(bf16=1e-2, fp32=1e-5, rows=blocks(bf16=2e-2, fp32=2e-5)),
)


def inputs(size: Size, draw: Draw) -> tuple[torch.Tensor, torch.Tensor, float]:
    world_size, rows, hidden = draw.world_size, _num_rows(size, draw.world_size), size["hidden"]
    eps = 1e-3 if draw.index % 2 == 1 else 1e-5
    gamma = 1 + draw.shared_normal(hidden, scale=0.5).float()
    # The mean square of a row is near eps: otherwise neither eps nor the factor 1/W can be seen.
    scale = (world_size * eps) ** 0.5 * draw.uniform(-1.0, 2.0, world_size, rows, 1).exp()
    scale[:, 0] = 0.0
    x = draw.normal(world_size, rows, hidden) * scale
    return x.to(draw.dtype).flatten(), gamma.to(draw.dtype), eps


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    mean = torch.stack([flat.double() for flat, *_ in inputs_of_all_ranks]).mean(dim=0)
    answers = []
    for chunk, (_, gamma, eps) in zip(mean.tensor_split(world_size), inputs_of_all_ranks, strict=True):
        rows = chunk.view(-1, gamma.shape[0])
        answers.append(rows / (rows.pow(2).mean(dim=1, keepdim=True) + eps).sqrt() * gamma.double())
    return answers


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # A rank's parts for its W-1 peers leave, and as many arrive, or one that a switch adds. Each element of the input
    # is read at its source, each of the own rows written. A sum of W, its scaling, square, sum and two products each.
    elements = _num_rows(size, world_size) * size["hidden"]
    num_bytes = dtype_bytes(dtype)
    return Cost(
        link_bytes=(world_size - 1) * elements * num_bytes,
        hbm_bytes=((world_size + 1) * elements + size["hidden"]) * num_bytes,
        flops=(world_size + 4) * elements,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    _, gamma, eps = inputs_of_all_ranks[0]
    flat = torch.stack([one[0].double() for one in inputs_of_all_ranks])
    hidden = gamma.shape[0]
    parts = flat.view(world_size, world_size, -1, hidden)
    x = parts.mean(dim=0)
    square = x.pow(2).mean(dim=-1, keepdim=True)
    weight = gamma.double()
    yield "eps left out", list(_over_root(x, square) * weight)
    yield "eps outside the root", list(x / (square.sqrt() + eps) * weight)
    yield "eps divided by the width", list(_over_root(x, square + eps / hidden) * weight)
    yield "gamma left out", list(_over_root(x, square + eps))
    yield "gamma backwards", list(_over_root(x, square + eps) * weight.flip(0))
    yield "mean left out of the root", list(_over_root(x, hidden * square + eps) * weight)
    yield "root left out", list(x / (square + eps) * weight)
    shifted = square.roll(1, dims=1)
    yield "another row's mean square", list(_over_root(x, shifted + eps) * weight)
    layer_norm = x - x.mean(dim=-1, keepdim=True)
    variance = layer_norm.pow(2).mean(dim=-1, keepdim=True)
    yield "mean subtracted", list(_over_root(layer_norm, variance + eps) * weight)
    if world_size == 1:
        return
    yield "sum in place of mean", list(_over_root(x, square + eps / world_size**2) * weight)
    own = torch.stack([parts[rank, rank] for rank in range(world_size)])
    own_square = own.pow(2).mean(dim=-1, keepdim=True)
    yield "own part alone", list(_over_root(own, own_square + eps) * weight)
    without = x - own / world_size
    without_square = without.pow(2).mean(dim=-1, keepdim=True)
    yield "own part missing", list(_over_root(without, without_square + eps) * weight)
    every_norm = _over_root(parts, parts.pow(2).mean(dim=-1, keepdim=True) + eps).mean(dim=0)
    yield "norm before the mean over ranks", list(every_norm * weight)
    yield "chunk of the next rank", expected[1:] + expected[:1]
    dealt = torch.cat(expected).view(-1, world_size, hidden)
    yield "every W-th row instead of a chunk", list(dealt.transpose(0, 1))


def _over_root(x: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
    """x / sqrt(square), where a row of zeros stays zeros."""
    return x * torch.where(square > 0, square, 1.0).rsqrt()


def _num_rows(size: Size, world_size: int) -> int:
    """Rows of one rank's chunk."""
    if "rows_per_rank" in size:
        return int(size["rows_per_rank"])
    return int(size["rows"] // max(world_size, size.get("fewest_chunks", 1)))
