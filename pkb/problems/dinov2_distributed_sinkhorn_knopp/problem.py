"""Judge's side of dinov2_distributed_sinkhorn_knopp.

The oracle never changes the matrix: it carries one factor a sample and one a prototype, and multiplies at the end. In
`tiny` sizes the temperature and n_iterations vary with the draw, and where W > 1 some draws have an empty
rank; counts
are those of the samples or differ from them. Costs count the mean number of samples.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from pkb.problems._check import Expected, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# Rank r has `samples` + (r mod 3) `more` samples; `iterations` take turns with the draw.
PROBLEM = Problem(
    number=80,
    group="loss",
    parallelism="dp",
    origin="DINOv2 iBOT patch loss, Sinkhorn-Knopp teacher",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"samples": 5, "more": 3, "prototypes": 23, "iterations": (3, 1, 0), "varied": True},
        "tiny_wide": {"samples": 3, "more": 1, "prototypes": 301, "iterations": (1, 3, 2), "varied": True},
        "base": {"samples": 1024, "prototypes": 16384, "iterations": (3,)},
        "large": {"samples": 4096, "prototypes": 65536, "iterations": (3,)},
    },
    check=relative(bf16=1e-4, fp32=1e-4, rows=1e-4),
)

DEFAULT_ITERATIONS = 3
TEMPERATURES = (0.07, 0.07, 0.04)


class Scores(NamedTuple):
    """What all ranks hold, in float64."""

    E: list[torch.Tensor]
    """exp(score / temperature) by rank, all divided by the same number, which cancels."""
    counts: list[int]
    num_iterations: int


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    index, is_varied = draw.index, size.get("varied", False)
    num_samples = _num_samples(size, draw.rank)
    if is_varied and draw.world_size > 1 and index % 4 == 1 and draw.rank == index // 4 % draw.world_size:
        num_samples = 0
    temperature = TEMPERATURES[index % 3] if is_varied else TEMPERATURES[0]
    popularity = draw.shared_normal(size["prototypes"]).float()
    scores = temperature * (2 * draw.normal(num_samples, size["prototypes"]).float() + 2 * popularity)
    count = (
        draw.integers(0, 2 * num_samples + 1, 1) + 1 if is_varied else draw.integers(num_samples, num_samples + 1, 1)
    )
    iterations = size["iterations"][index % len(size["iterations"])]
    arguments = (scores.to(draw.dtype), temperature, count)
    if iterations == DEFAULT_ITERATIONS and index % 2 == 0:
        return arguments
    group = Group.whole(draw.world_size) if index % 4 == 1 else None
    return (*arguments, iterations, group) if index % 4 > 0 else (*arguments, iterations)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Expected]:
    return _centered(_scores(inputs_of_all_ranks))


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Sums of prototypes are all-reduced by slices, or added by a switch, and so are the mass and the count. Each sum of
    # prototypes needs a pass over the scores, the last factors of samples one more, with the result written in it. An
    # element costs 4 operations a pass.
    num_elems = sum(_num_samples(size, rank) for rank in range(world_size)) / world_size * size["prototypes"]
    passes = min(2 * (world_size - 1) / world_size, 1 + 1 / world_size)
    iterations = size["iterations"][0]
    return Cost(
        link_bytes=passes * 4 * (iterations * size["prototypes"] + 2),
        hbm_bytes=num_elems * ((iterations + 1) * dtype_bytes(dtype) + 4),
        flops=4 * (iterations + 1) * num_elems,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    scores = _scores(inputs_of_all_ranks)
    n, iterations = sum(scores.counts), scores.num_iterations
    if inputs_of_all_ranks[0][0].dtype == torch.float32:
        rounded = [(x.bfloat16(), *rest) for x, *rest in inputs_of_all_ranks]
        yield "scores in bf16", _centered(_scores(rounded))
    yield "exponentials in bf16", _centered(scores._replace(E=[e.bfloat16().double() for e in scores.E]))
    twice = [(x, 2 * temperature, *rest) for x, temperature, *rest in inputs_of_all_ranks]
    yield "twice the temperature", _centered(_scores(twice))
    if iterations == 0:
        yield "count left out", [Expected(one.value / n, torch.float32) for one in expected]
        yield "mass left out", [Expected(e * n, torch.float32) for e in scores.E]
    else:
        yield "samples before prototypes", _centered(scores, samples_first=True)
        yield "one iteration less", _centered(scores._replace(num_iterations=iterations - 1))
        yield "last step on prototypes", _without_last_step(scores)
        yield "rows that add up to 1 / n", [Expected(one.value / n, torch.float32) for one in expected]
        yield "prototypes not normalized", [Expected(e / e.sum(dim=1, keepdim=True), torch.float32) for e in scores.E]
    yield "one iteration more", _centered(scores._replace(num_iterations=iterations + 1))
    if world_size == 1:
        return
    own = [scores._replace(E=[e], counts=[c]) for e, c in zip(scores.E, scores.counts, strict=True)]
    yield "own samples alone", [_centered(one)[0] for one in own]
    if iterations == 0:
        yield (
            "own count",
            [
                Expected(one.value / n * count, torch.float32)
                for one, count in zip(expected, scores.counts, strict=True)
            ],
        )
    yield "last rank's samples left out", _with_sums_of(scores, scores.E[:-1])


def _centered(scores: Scores, *, samples_first: bool = False) -> list[Expected]:
    """n diag(u) E diag(v), where u and v make the sums right one after the other."""
    return _with_sums_of(scores, scores.E, samples_first=samples_first)


def _with_sums_of(scores: Scores, seen: list[torch.Tensor], *, samples_first: bool = False) -> list[Expected]:
    """The same, with sums over the samples of the ranks in `seen` alone, which are the first ones."""
    n, num_prototypes = sum(scores.counts), scores.E[0].shape[1]
    mass = torch.stack([e.sum() for e in seen]).sum()
    v = torch.ones(num_prototypes, dtype=torch.float64, device=mass.device)
    u = [1 / mass * torch.ones(len(e), dtype=torch.float64, device=mass.device) for e in scores.E]
    for _ in range(scores.num_iterations):
        if samples_first:
            u = [1 / (n * (e @ v)) for e in scores.E]
        v = 1 / (num_prototypes * torch.stack([f @ e for f, e in zip(u, seen, strict=False)]).sum(dim=0))
        if not samples_first:
            u = [1 / (n * (e @ v)) for e in scores.E]
    return [Expected(n * f.unsqueeze(1) * e * v, torch.float32) for f, e in zip(u, scores.E, strict=True)]


def _without_last_step(scores: Scores) -> list[Expected]:
    """Prototypes normalized once more after the last iteration, so that rows do not add up to 1."""
    n, num_prototypes = sum(scores.counts), scores.E[0].shape[1]
    done = [one.value / n for one in _centered(scores)]
    sums = torch.stack([q.sum(dim=0) for q in done]).sum(dim=0)
    return [Expected(n * q / (sums * num_prototypes), torch.float32) for q in done]


def _scores(inputs_of_all_ranks: list[tuple[Any, ...]]) -> Scores:
    exponents = [x.double() / temperature for x, temperature, *_ in inputs_of_all_ranks]
    largest = max(float(e.max()) for e in exponents if len(e) > 0)
    iterations = (*inputs_of_all_ranks[0][3:4], DEFAULT_ITERATIONS)[0]
    counts = [int(count) for _, _, count, *_ in inputs_of_all_ranks]
    return Scores([(e - largest).exp() for e in exponents], counts, iterations)


def _num_samples(size: Size, rank: int) -> int:
    return int(size["samples"] + rank % 3 * size.get("more", 0))
