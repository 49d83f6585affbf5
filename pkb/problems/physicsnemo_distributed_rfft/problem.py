"""Judge's side of physicsnemo_distributed_rfft.

The catalogue's "None keeps the size" is read as: for n0, for n1, or for s as a whole.
"""

from collections.abc import Iterator
from math import log2, prod
from typing import Any

import torch

from pkb.problems._check import Expected, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size

# `shape` has None along d1: there a rank has `columns` / W, or `columns_per_rank`. n0 is `rows` where the field is
# cropped, n1 has `more` columns than the field.
PROBLEM = Problem(
    number=59,
    group="spectral",
    parallelism="spatial",
    origin="NVIDIA PhysicsNeMo distributed FFT for AFNO models",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"shape": (3, 24, None), "columns_per_rank": 5, "dim": (1, 2)},
        "tiny_resized": {"shape": (2, 16, 3, None), "columns_per_rank": 6, "dim": (-3, -1), "rows": 8, "more": 3},
        "base": {"shape": (16, 1024, None), "columns": 1024, "dim": (1, 2), "norm": "ortho"},
        "large": {"shape": (512, 720, None), "columns": 1440, "dim": (1, 2), "norm": "ortho"},
    },
    check=relative(bf16=1e-5, fp32=1e-5),
    dtypes=("fp32",),
)

NORMS = ("ortho", "backward", "forward")


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    index, dim = draw.index, size["dim"]
    columns = _num_columns(size, draw.world_size)
    x = draw.normal(*[columns // draw.world_size if n is None else n for n in size["shape"]])
    n0, n1 = size.get("rows", x.shape[dim[0]]), columns + size.get("more", 0)
    s: tuple[int | None, int | None] | None = (n0, n1)
    if s == (x.shape[dim[0]], columns) and "norm" not in size:
        s = ((n0, n1), (None, n1), (n0, None), None)[index % 4]
    norm = size.get("norm", NORMS[index % 3])
    if index % 3 == 0:
        return (x, s, dim) if norm == "ortho" else (x, s, dim, norm)
    return x, s, dim, norm, Group.whole(draw.world_size) if index % 2 == 1 else None


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Expected]:
    s, dim, norm = _options(inputs_of_all_ranks)
    spectrum = torch.fft.rfftn(_joined(inputs_of_all_ranks), s=s, dim=dim, norm=norm)
    return [Expected(rows, torch.complex64) for rows in spectrum.chunk(world_size, dim=dim[0])]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # n points of the field a rank, 4 bytes each. Either the whole first transform is exchanged, 8 n (W - 1) / W
    # bytes; or, since its rows k0 and n0 - k0 are conjugates, one half of the rows, and then each rank hands one half
    # of every row's spectrum, 2 n bytes, to the rank that needs the mirrored row. Field, half of the rows
    # (written and read) and half spectrum are 4 n bytes each. A transform of m real points takes 2.5 m log2(m).
    dim = size["dim"]
    rows = size.get("rows", size["shape"][dim[0]])
    num_fields = prod(n for i, n in enumerate(size["shape"]) if n is not None and i != dim[0] % len(size["shape"]))
    whole = rows * (_num_columns(size, world_size) + size.get("more", 0))
    n = num_fields * whole / world_size
    away = (world_size - 1) / world_size
    return Cost(
        link_bytes=n * min(8 * away, 4 * away + 2),
        hbm_bytes=16 * n,
        flops=2.5 * n * log2(whole),
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    s, dim, norm = _options(inputs_of_all_ranks)
    (n0, n1), (d0, d1) = s, dim
    whole = _joined(inputs_of_all_ranks)

    def cut(spectrum: torch.Tensor) -> list[torch.Tensor]:
        return list(spectrum.to(torch.complex64).chunk(world_size, dim=d0))

    def answer(field: torch.Tensor) -> list[torch.Tensor]:
        return cut(torch.fft.rfftn(field, s=s, dim=dim, norm=norm))

    right = torch.cat([one.value for one in expected], dim=d0)
    yield "other sign of the exponent", cut(right.conj())
    yield "upper half of the columns", cut(torch.fft.fftn(whole, s=s, dim=dim, norm=norm).flip(d1)[_first(right, d1)])
    yield "last column left out", cut(_zeros_behind(right, d1, right.shape[d1] - 1))
    yield "rows backwards", cut(right.flip(d0))
    one_axis = {"ortho": n1**0.5, "backward": 1.0, "forward": n1}[norm]
    yield "scaled for both axes or none", cut(right * {"ortho": one_axis * n0**0.5, "forward": n0 * n1}.get(norm, 0.5))
    if norm != "backward":
        yield "scaled for one axis alone", cut(right * one_axis)
    yield "axes exchanged", answer(_resized(whole, s, dim).transpose(d0, d1).reshape(_resized(whole, s, dim).shape))
    if n1 > whole.shape[d1]:
        yield "zeros before the columns", answer(_resized(whole.flip(d1), s, dim).flip(d1))
    if n0 < whole.shape[d0]:
        yield "cropped at the beginning", answer(whole.narrow(d0, whole.shape[d0] - n0, n0))
    if world_size == 1:
        return
    xs = [one[0].double() for one in inputs_of_all_ranks]
    yield "pieces by descending rank", answer(torch.cat(xs[::-1], dim=d1))
    ranks = range(world_size)
    yield "pieces in order of arrival", [answer(torch.cat(xs[r:] + xs[:r], dim=d1))[r] for r in ranks]
    dealt = [right.movedim(d0, 0)[r::world_size].movedim(0, d0).to(torch.complex64) for r in ranks]
    if n0 > world_size:
        yield "rows dealt out one by one", dealt
    if n1 > whole.shape[d1]:
        share = -(-n1 // world_size)
        padded = [_resized(x, (x.shape[d0], share), dim) for x in xs]
        yield "zeros behind each piece", answer(torch.cat(padded, dim=d1))


def _options(inputs_of_all_ranks: list[tuple[Any, ...]]) -> tuple[tuple[int, int], tuple[int, int], str]:
    """(n0, n1) as numbers, dim, norm."""
    x, s, dim, *optional = inputs_of_all_ranks[0]
    n0, n1 = s if s is not None else (None, None)
    kept = x.shape[dim[0]], x.shape[dim[1]] * len(inputs_of_all_ranks)
    return (n0 or kept[0], n1 or kept[1]), dim, optional[0] if optional else "ortho"


def _joined(inputs_of_all_ranks: list[tuple[Any, ...]]) -> torch.Tensor:
    d1 = inputs_of_all_ranks[0][2][1]
    return torch.cat([x.double() for x, *_ in inputs_of_all_ranks], dim=d1)


def _num_columns(size: Size, world_size: int) -> int:
    """Columns of the field over all ranks."""
    return int(size["columns"] if "columns" in size else size["columns_per_rank"] * world_size)


def _first(like: torch.Tensor, dim: int) -> tuple[slice, ...]:
    """Index of as many places along `dim` as `like` has."""
    return tuple(slice(like.shape[dim]) if d == dim % like.dim() else slice(None) for d in range(like.dim()))


def _zeros_behind(tensor: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    """Zeros from place `count` of `dim` on."""
    result = tensor.clone()
    result.narrow(dim, count, tensor.shape[dim] - count).zero_()
    return result


def _resized(tensor: torch.Tensor, sizes: tuple[int, int], dim: tuple[int, int]) -> torch.Tensor:
    """Cropped or padded at the end to the given sizes of two dimensions."""
    for n, d in zip(sizes, dim, strict=True):
        shape = [max(0, n - tensor.shape[d]) if i == d % tensor.dim() else m for i, m in enumerate(tensor.shape)]
        tensor = torch.cat((tensor, tensor.new_zeros(shape)), dim=d).narrow(d, 0, n)
    return tensor
