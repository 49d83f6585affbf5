"""What the portable solutions have to compute, and a rank's job that calls them back to back and compares."""

from __future__ import annotations

import hashlib
import importlib.util
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pkb import symm

FOLDER = Path(__file__).parents[2] / "solutions"
NAMES = ("allgather", "allreduce", "tp_rms_norm")

SHAPES: tuple[tuple[int, ...], ...] = ((33, 129), (5, 7, 3), (33, 129), (1,), (40,), (5, 7, 3), (0, 4))
"""Each is used in two calls running: only there can a rank overwrite what a slower peer still reads."""
DTYPES = (torch.bfloat16, torch.float32)
EPSILON = 1e-5


def path_of(name: str) -> Path:
    """The portable solution of a problem."""
    return FOLDER / name / "portable" / "solution.py"


def without_barrier(name: str, which: int) -> str:
    """Source of the portable solution without its first (0) or last (1) barrier: the mutant a judge must catch."""
    lines = path_of(name).read_text(encoding="utf-8").splitlines(keepends=True)
    barriers = [number for number, line in enumerate(lines) if line.strip() == "handle.barrier()"]
    assert len(barriers) == 2
    del lines[barriers[which]]
    return "".join(lines)


def run_back_to_back(
    sources: dict[str, tuple[str, str]], num_calls: int, delay_s: float, device: str = "cpu"
) -> dict[str, tuple[int, str]]:
    """Call solutions many times under random delays, compare all results at the end.

    Args:
        sources: (problem, source of its solution) by any label.
        num_calls: calls of each solution; shapes and dtypes change every second call.
        delay_s: a random rank is held up that long after a barrier, now and then.
        device: where the inputs are.

    Returns:
        By label: how many results of this rank were wrong, and a hash over all of them.
    """
    rank = dist.get_rank()
    held_up = random.Random(rank)
    symm.set_after_barrier(lambda: time.sleep(delay_s) if held_up.random() < 0.3 else None)
    verdicts = {}
    for label, (problem, source) in sources.items():
        solution = _load(source)
        calls = [_arguments(problem, call, device) for call in range(num_calls)]
        results = [solution(*of_ranks[rank]) for of_ranks in calls]
        wrong = sum(
            not _is_right(result, _expected(problem, of_ranks)[rank], of_ranks[rank][0].dtype, problem)
            for result, of_ranks in zip(results, calls, strict=True)
        )
        digest = hashlib.sha256()
        for result in results:
            digest.update(result.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        verdicts[label] = (wrong, digest.hexdigest())
        dist.barrier()
    symm.set_after_barrier(None)
    return verdicts


def _load(source: str) -> Callable[..., torch.Tensor]:
    spec = importlib.util.spec_from_loader("candidate", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    exec(compile(source, "solution.py", "exec"), module.__dict__)
    solution: Callable[..., torch.Tensor] = module.solution
    return solution


def _arguments(problem: str, call: int, device: str) -> list[tuple[Any, ...]]:
    """Arguments of all ranks for one call: every rank can draw them, so that each knows the truth."""
    pair = call // 2
    shape, dtype = SHAPES[pair % len(SHAPES)], DTYPES[pair // 2 % 2]
    of_ranks: list[tuple[Any, ...]] = []
    for rank in range(dist.get_world_size()):
        rng = torch.Generator().manual_seed(1000 * call + rank)
        tensor = (torch.randn(shape, generator=rng) * (1 + rank)).to(dtype).to(device)
        if problem == "tp_rms_norm":
            weight = torch.randn(shape[-1], generator=rng).to(dtype).to(device)
            of_ranks.append((tensor, weight, EPSILON))
        else:
            of_ranks.append((tensor,))
    return of_ranks


def _expected(problem: str, of_ranks: list[tuple[Any, ...]]) -> list[torch.Tensor]:
    tensors = [arguments[0].double() for arguments in of_ranks]
    if problem == "allreduce":
        return [torch.stack(tensors).sum(0)] * len(tensors)
    if problem == "allgather":
        return [torch.stack(tensors)] * len(tensors)
    variance = torch.cat(tensors, dim=-1).square().mean(-1, keepdim=True)
    scale = torch.rsqrt(variance + EPSILON)
    return [x * scale * arguments[1].double() for x, arguments in zip(tensors, of_ranks, strict=True)]


def _is_right(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype, problem: str) -> bool:
    if got.dtype != dtype or got.shape != want.shape:
        return False
    if problem == "allgather":
        return torch.equal(got.double(), want)
    # Per element: half a unit of rounding for the sum, twice that for the two roundings of the norm.
    step = torch.finfo(dtype).eps
    bound = step * want.abs() + (1e-6 if dtype == torch.float32 else 0.0)
    return bool(((got.double() - want).abs() <= bound).all())
