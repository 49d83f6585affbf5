"""Judge's side of tp_muon_orthogonalization.

The oracle does not iterate on the matrix: it takes the eigenvalues of the Gram matrix of the shorter side, applies all
steps to each of them, and multiplies once. Costs are those of the iteration as the contract states it, on the shorter
side, where symmetry halves two of its three products and ranks share the square of the Gram matrix out.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from pkb.problems._check import relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# `part` is a rank's shape, `whole` that of the matrix, its cut dimension rounded up to a multiple of W. `runs` take
# turns with the draw.
PROBLEM = Problem(
    number=86,
    group="optimizer",
    parallelism="tp",
    origin="NVIDIA Emerging-Optimizers / Megatron-LM tensor-parallel Muon",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {
            "part": (10, 6),
            "dim": 1,
            "runs": (("quintic", 5), ("quintic", 10), ("aol", 4), ("simple", 3), ("polar_express", 8)),
        },
        "tiny_rows": {
            "part": (6, 10),
            "dim": 0,
            "runs": (("simple", 3), ("polar_express", 8), ("quintic", 5), ("aol", 4), ("quintic", 10)),
        },
        "base": {"whole": (512, 512), "dim": 1, "runs": (("quintic", 5),)},
        "large": {"whole": (4096, 16384), "dim": 1, "runs": (("quintic", 5),)},
        "large_rows": {"whole": (16384, 4096), "dim": 0, "runs": (("quintic", 5),)},
    },
    check=relative(bf16=1.5e-2, fp32=2e-3),
)

COEFFICIENTS = {
    "simple": "3.4445 -4.7750 2.0315",
    "quintic": (
        "4.0848 -6.8946 2.9270  3.9505 -6.3029 2.6377  3.7418 -5.5913 2.3037  2.8769 -3.1427 1.2046  "
        "2.8366 -3.0525 1.2012"
    ),
    "polar_express": (
        "8.2051 -22.9019 16.4607  4.0664 -2.8612 0.5184  3.9096 -2.8234 0.5250  3.2856 -2.4647 0.5074  "
        "2.2779 -1.6447 0.4162  1.8726 -1.2307 0.3585  1.8564 -1.2132 0.3568  1.8750 -1.2500 0.3750"
    ),
    "aol": "4.0098 -7.0585 2.4635  3.4585 -5.5479 2.5959  2.7573 -3.2939 1.4254  2.7215 -3.0494 1.3169",
}

RANK = 3


class Options(NamedTuple):
    """Arguments behind x, with the defaults filled in."""

    steps: int
    coefficient_type: str
    partition_dim: int

    def series(self) -> list[tuple[float, ...]]:
        """(a, b, c) of every step."""
        numbers = [float(number) for number in COEFFICIENTS[self.coefficient_type].split()]
        cycle = [tuple(numbers[i : i + 3]) for i in range(0, len(numbers), 3)]
        return [cycle[step % len(cycle)] for step in range(self.steps)]


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    world_size, dim, index = draw.world_size, size["dim"], draw.index
    part = list(_part(size, world_size))
    whole = [extent * world_size if d == dim else extent for d, extent in enumerate(part)]
    left, right = draw.shared_normal(whole[0], RANK).float(), draw.shared_normal(RANK, whole[1]).float()
    if dim == 0:
        left = left.chunk(world_size)[draw.rank]
    else:
        right = right.chunk(world_size, dim=1)[draw.rank]
    x = (draw.normal(*part).float() + 2 * (left @ right)).to(draw.dtype)
    coefficient_type, steps = size["runs"][index % len(size["runs"])]
    if (coefficient_type, steps, dim) == ("quintic", 5, 1) and index % 2 == 0:
        return (x,)
    arguments = (x, steps, coefficient_type, dim)
    return arguments if index % 3 == 0 else (*arguments, Group.whole(world_size) if index % 3 == 1 else None)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    options = _options(inputs_of_all_ranks[0])
    return _orthogonalized([x for x, *_ in inputs_of_all_ranks], options.partition_dim, options.series())


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Per step: half of a Gram matrix from the own part, half of its square shared out over ranks, the update of the own
    # part; half of the Gram matrix is all-reduced by slices, or added by a switch, in the dtype of x. The parts in
    # between may stay on chip, so device memory is counted for x and the result alone.
    rows, columns = _part(size, world_size)
    num_elems = rows * columns
    side = min(rows, columns * world_size) if size["dim"] == 1 else min(rows * world_size, columns)
    steps = size["runs"][0][1]
    passes = min(2 * (world_size - 1) / world_size, 1 + 1 / world_size)
    return Cost(
        link_bytes=steps * passes * side * (side + 1) / 2 * dtype_bytes(dtype),
        hbm_bytes=2 * num_elems * dtype_bytes(dtype),
        flops=steps * (3 * num_elems * side + side**3 / world_size),
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    options = _options(inputs_of_all_ranks[0])
    dim, series = options.partition_dim, options.series()
    xs = [x for x, *_ in inputs_of_all_ranks]
    if options.coefficient_type != "polar_express":
        # The last of its steps changes nothing any more.
        yield "last step left out", _orthogonalized(xs, dim, series[:-1])
    if len(set(series)) > 1:
        yield "coefficients backwards", _orthogonalized(xs, dim, series[::-1])
        yield "first coefficients in all steps", _orthogonalized(xs, dim, series[:1] * len(series))
    if options.steps == 10 and xs[0].dtype == torch.float32:
        # After one cycle all singular values are near 1: in bf16 the difference may be within rounding.
        yield "one cycle in place of two", _orthogonalized(xs, dim, series[:5])
        held = series[:5] + series[4:5] * 5
        yield "last coefficients held after one cycle", _orthogonalized(xs, dim, held)
    yield "normalized alone", _orthogonalized(xs, dim, [])
    scale = torch.stack([x.double().square().sum() for x in xs]).sum().sqrt()
    if options.coefficient_type == "simple":
        # The others take singular values half as large to the same ones, nearly.
        yield "twice the norm", _orthogonalized(xs, dim, series, norms=[2 * scale] * world_size)
    yield "not normalized", [x.double() / x.double().norm() * e.norm() for x, e in zip(xs, expected, strict=True)]
    without_square = [(a, b, 0.0) for a, b, _ in series]
    yield "square of the Gram matrix left out", _orthogonalized(xs, dim, without_square)
    if world_size == 1:
        return
    yield "own part alone", [_orthogonalized([x], dim, series)[0] for x in xs]
    yield "norm of the own part", _orthogonalized(xs, dim, series, norms=[x.double().norm() for x in xs])
    yield "Gram matrix of the own part", [_orthogonalized([x], dim, series, norms=[scale])[0] for x in xs]
    yield "parts joined along the other dimension", _orthogonalized(xs, 1 - dim, series)
    yield "another rank's part", [expected[r - 1] for r in range(world_size)]


def _orthogonalized(
    parts: list[torch.Tensor],
    partition_dim: int,
    series: Sequence[tuple[float, ...]],
    norms: list[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """Each rank's part after all steps; `norms` (by rank) stand for that of the whole matrix."""
    X = torch.cat([part.double() for part in parts], dim=partition_dim)
    if norms is None:
        X /= X.norm().clamp_min(1e-7)
    else:
        X = torch.cat([part.double() / n for part, n in zip(parts, norms, strict=True)], dim=partition_dim)
    is_wide = X.shape[0] <= X.shape[1]
    gram = X @ X.mT if is_wide else X.mT @ X
    squares, vectors = torch.linalg.eigh(gram)
    # A step multiplies a singular value s by a + b s^2 + c s^4: a polynomial in the eigenvalue s^2.
    values, factors = squares.clamp_min(0.0), torch.ones_like(squares)
    for a, b, c in series:
        gain = a + b * values + c * values.square()
        factors, values = factors * gain, values * gain.square()
    operator = (vectors * factors) @ vectors.mT
    return list((operator @ X if is_wide else X @ operator).chunk(len(parts), dim=partition_dim))


def _options(arguments: tuple[Any, ...]) -> Options:
    given = arguments[1:4]
    return Options(*given, *(5, "quintic", 1)[len(given) :])


def _part(size: Size, world_size: int) -> tuple[int, int]:
    if "part" in size:
        rows, columns = size["part"]
    else:
        rows, columns = (
            -(-extent // world_size) if d == size["dim"] else extent for d, extent in enumerate(size["whole"])
        )
    return rows, columns
