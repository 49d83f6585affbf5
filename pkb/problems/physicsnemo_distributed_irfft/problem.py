"""Judge's side of physicsnemo_distributed_irfft.

The catalogue's baseline gathers the extended spectrum of all ranks for the sake of the mirrored rows. Twice the inner
columns do the same under the real part, in fewer lines and without that exchange; so the baseline here does that.
"""

from collections.abc import Iterator
from math import log2, prod
from typing import Any

import torch

from pkb.problems._check import relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size

# n0 is `rows`, or `rows_per_rank` times W; n1 is `columns`, for one rank alone `columns_alone` where that is given
# (W divides n1, so that it can be odd only there). `before` are the sizes of the axes in front of the rows; where
# `between` is true, odd draws have the rows in front of the last of them.
PROBLEM = Problem(
    number=60,
    group="spectral",
    parallelism="spatial",
    origin="NVIDIA PhysicsNeMo distributed FFT for AFNO models",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"before": (2, 3), "rows_per_rank": 3, "columns": 24, "between": True},
        "tiny_odd": {"before": (2,), "rows_per_rank": 3, "columns": 16, "columns_alone": 15},
        "base": {"before": (2, 10), "rows": 720, "columns": 1440, "norm": "ortho"},
        "large": {"before": (2, 256), "rows": 720, "columns": 1440, "norm": "ortho"},
    },
    check=relative(bf16=1e-5, fp32=1e-5),
    dtypes=("fp32",),
)

NORMS = ("ortho", "backward", "forward")


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    world_size, index = draw.world_size, draw.index
    n0, n1 = s = _transform_sizes(size, world_size)
    before = size["before"]
    if index % 2 == 0:
        # The spectrum of a real field.
        whole = torch.fft.rfft2(draw.shared_normal(*before, n0, n1), norm="ortho")
        x = whole.chunk(world_size, dim=-2)[draw.rank].contiguous()
    else:
        shape = (*before, n0 // world_size, n1 // 2 + 1)
        x = torch.complex(draw.normal(*shape), draw.normal(*shape))
    d0, d1 = x.dim() - 2, x.dim() - 1
    if size.get("between", False) and index % 2 == 1:
        x = x.transpose(d0 - 1, d0).contiguous()
        d0 -= 1
    dim = (d0, d1) if index % 4 < 2 else (d0 - x.dim(), -1)
    norm = size.get("norm", NORMS[index % 3])
    if index % 3 == 0:
        return (x, s, dim) if norm == "ortho" else (x, s, dim, norm)
    return x, s, dim, norm, Group.whole(world_size) if index % 2 == 1 else None


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    _, (d0, d1), norm = _options(inputs_of_all_ranks)
    field = torch.fft.ifftn(_extended(inputs_of_all_ranks), dim=(d0, d1), norm=norm).real
    return list(field.chunk(world_size, dim=d1))


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # n points of the field a rank, 4 bytes each. Either complex rows are exchanged after their transform,
    # 8 n (W - 1) / W bytes; or half of the half spectrum, 2 n bytes, goes to the rank that has the mirrored row, and
    # then one half of the rows is enough, since rows h and n0 - h are conjugates. Half spectrum, half of the rows
    # (written and read) and field are 4 n bytes each. A transform of m real points takes 2.5 m log2(m).
    n0, n1 = _transform_sizes(size, world_size)
    n = prod(size["before"]) * n0 * n1 / world_size
    away = (world_size - 1) / world_size
    return Cost(
        link_bytes=n * min(8 * away, 4 * away + 2),
        hbm_bytes=16 * n,
        flops=2.5 * n * log2(n0 * n1),
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    (n0, n1), (d0, d1), norm = _options(inputs_of_all_ranks)
    whole = _extended(inputs_of_all_ranks)
    inner = (n1 - 1) // 2
    upper = whole.narrow(d1, n1 - inner, inner)

    def field(spectrum: torch.Tensor) -> torch.Tensor:
        inverse: torch.Tensor = torch.fft.ifftn(spectrum, dim=(d0, d1), norm=norm)
        return inverse.real

    def answer(spectrum: torch.Tensor) -> list[torch.Tensor]:
        return list(field(spectrum).chunk(world_size, dim=d1))

    def with_upper(columns: torch.Tensor) -> list[torch.Tensor]:
        return answer(torch.cat((whole.narrow(d1, 0, n1 - inner), columns), dim=d1))

    yield "row 0 flipped with the others", with_upper(upper.roll(-1, d0))
    yield "rows not flipped", with_upper(upper.flip(d0).roll(1, d0))
    yield "columns not flipped", with_upper(upper.flip(d1))
    yield "mirrored without conjugates", with_upper(upper.conj())
    yield "upper columns left out", with_upper(torch.zeros_like(upper))
    yield "other sign of the exponent", answer(whole.conj())
    yield "column 0 counted twice", answer(_scaled(whole, d1, 0, 2.0))
    column = whole - _scaled(whole, d1, 0, 0.0)
    leak = torch.fft.ifftn(column, dim=(d0, d1), norm=norm).imag
    if float(leak.abs().max()) > 1e-3 * float(column.abs().max()) / n0:
        leaked = field(whole) + leak
        yield "imaginary part of column 0 leaks in", list(leaked.chunk(world_size, dim=d1))
    if n1 % 2 == 0:
        yield "column n1 / 2 counted twice", answer(_scaled(whole, d1, n1 // 2, 2.0))
    else:
        yield "last column taken for the middle one", answer(_scaled(whole, d1, n1 // 2 + 1, 0.0))
    one_axis = {"ortho": n1**0.5, "backward": n1, "forward": 0.5}[norm]
    yield "scaled for one axis alone", [one * one_axis for one in expected]
    if world_size == 1:
        return
    ranks = range(world_size)
    yield "rows by descending rank", answer(_extended(inputs_of_all_ranks[::-1]))
    turned = [_extended(inputs_of_all_ranks[r:] + inputs_of_all_ranks[:r]) for r in ranks]
    yield "rows in order of arrival", [answer(turned[r])[r] for r in ranks]
    dealt = [field(whole)[..., r::world_size] for r in ranks]
    yield "columns dealt out one by one", dealt
    # Each rank fills its own rows in from its own rows.
    blocks = upper.chunk(world_size, dim=d0)
    within = [block.flip(d0).roll(1, d0) for block in blocks]
    yield "mirrored within each rank's rows", with_upper(torch.cat(within[::-1], dim=d0))


def _options(inputs_of_all_ranks: list[tuple[Any, ...]]) -> tuple[tuple[int, int], tuple[int, int], str]:
    """(n0, n1), axes as non-negative numbers, norm."""
    x, s, dim, *optional = inputs_of_all_ranks[0]
    return s, (dim[0] % x.dim(), dim[1] % x.dim()), optional[0] if optional else "ortho"


def _extended(inputs_of_all_ranks: list[tuple[Any, ...]]) -> torch.Tensor:
    """The spectrum with all n1 columns, complex128."""
    (_, n1), (d0, d1), _ = _options(inputs_of_all_ranks)
    half = torch.cat([x.to(torch.complex128) for x, *_ in inputs_of_all_ranks], dim=d0)
    mirrored = half.narrow(d1, 1, (n1 - 1) // 2).flip(d0, d1).roll(1, d0).conj()
    return torch.cat((half, mirrored), dim=d1)


def _scaled(tensor: torch.Tensor, dim: int, place: int, factor: float) -> torch.Tensor:
    """One place of a dimension multiplied."""
    result = tensor.clone()
    result.select(dim, place).mul_(factor)
    return result


def _transform_sizes(size: Size, world_size: int) -> tuple[int, int]:
    n0 = size["rows"] if "rows" in size else size["rows_per_rank"] * world_size
    n1 = size.get("columns_alone", size["columns"]) if world_size == 1 else size["columns"]
    return int(n0), int(n1)
