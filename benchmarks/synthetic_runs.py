"""Runs of made-up models with records of real size, for benchmarks and tests of reports. Not results of anything."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pkb.problems._find import list_problems
from pkb.records.attempt import Attempt, Backend, Extraction, Mode, Turn, Usage
from pkb.records.machine import Fingerprint
from pkb.records.run import Run, RunProblem
from pkb.records.run_folder import RunFolder, append_line
from pkb.records.solution import Solution
from pkb.records.verdict import (
    CAUSES_OF,
    DeviceMode,
    Failure,
    Interval,
    Mismatch,
    Phase,
    Status,
    Timing,
    Trial,
    Verdict,
)

_MACHINE = Fingerprint(
    host="synthetic", device_name="made-up GPU", num_devices=8, num_cpus=64, memory_bytes=1 << 37, topology="NV18",
    torch="2.13.0", python="3.12.3", system="Linux", pkb="0.1.0",
)  # fmt: skip
_FAILURES = (
    Status.WRONG, Status.WRONG, Status.WRONG, Status.BUILD_FAILED, Status.BUILD_FAILED, Status.CRASHED, Status.HUNG,
    Status.REFUSED, Status.INVALID,
)  # fmt: skip
_CODE_LINE = (
    "    if (rank != peer) { copy_tile<kTileBytes>(out + offset(rank, tile), peer_in[peer] + offset(peer, tile)); }\n"
)


def write_runs(
    folder: Path, *, models: Sequence[str], attempts: int, problems: int | None = None, turns: int = 1
) -> list[Path]:
    """Write one run for each model into a folder below `folder`; the same arguments give the same scores."""
    return [_write_run(folder / f"made-up-{model}", model, attempts, problems, turns) for model in models]


def _write_run(folder: Path, model: str, attempts: int, problems: int | None, turns: int) -> Path:
    asked = [
        RunProblem(id=p.id, number=p.number, title=p.title, group=p.group, parallelism=p.parallelism, sha256=p.sha256)
        for p in list_problems()[:problems]
    ]
    run = Run(
        name=folder.name, model=f"made-up/{model}", mode=Mode.ZERO_SHOT if turns == 1 else Mode.FEEDBACK,
        backend=Backend.CUDA, hardware="h200_8", problems=tuple(asked), attempts=attempts, turns=turns, world_size=8,
        dtype="bf16", size="large", device="cuda", config_sha256="0" * 64, pkb="0.1.0",
    )  # fmt: skip
    target = RunFolder(folder)
    target.create(run)
    rng = random.Random(model)
    skill = rng.uniform(0.15, 0.5)
    for problem in asked:
        ease = rng.betavariate(1.2, 2.0 / skill - 1.2)
        for index in range(attempts):
            made = tuple(_turn(rng, problem.id, ease, number) for number in range(turns))
            attempt = Attempt(
                run=run.name, model=run.model, problem=problem.id, problem_sha256=problem.sha256, mode=run.mode,
                backend=run.backend, hardware=run.hardware, index=index, prompt_sha256="0" * 64, turns=made,
            )  # fmt: skip
            append_line(folder / "attempts.jsonl", attempt)
    return folder


def _turn(rng: random.Random, problem: str, ease: float, number: int) -> Turn:
    usage = Usage(input_tokens=6_000, output_tokens=rng.randrange(3_000, 40_000), cost_usd=0.02, seconds=60.0)
    said: dict[str, Any] = {"index": number, "prompt": "Write it. " * 600, "usage": usage}
    if rng.random() < 0.05:
        return Turn(**said, reply="I cannot.", extraction=Extraction.NO_CODE)
    body = _CODE_LINE * rng.randrange(60, 120)
    code = f'"""{problem}."""\n\nCUDA = r"""\n{body}"""\n\n\ndef solution(x):\n    ...\n'
    verdict = _verdict(rng, problem, rng.random() < ease)
    return Turn(**said, reply=f"Here it is.\n```python\n{code}```\n", extraction="found", code=code, verdict=verdict)


def _verdict(rng: random.Random, problem: str, correct: bool) -> Verdict:
    status = Status.CORRECT if correct else rng.choice(_FAILURES)
    library = correct and rng.random() < 0.15
    return Verdict(
        problem=problem,
        problem_sha256="0" * 64,
        solution=Solution(name="attempt", path="attempt.py", files=("attempt.py",), sha256="0" * 64),
        status=status,
        failure=None if correct else _failure(rng, status),
        device=DeviceMode.CUDA,
        world_size=8,
        dtype="bf16",
        trials=tuple(
            Trial(size=size, index=index, exact=False, num_calls=3, error=0.002, tolerance=0.008, rounding_error=0.0017,
                  passed=correct)
            for size in ("tiny", "large")
            for index in range(3)
        ),
        timings=tuple(_timing(rng, size) for size in ("base", "large")) if correct else (),
        solution_class=None if not correct else "library" if library else rng.choice(("custom", "hybrid")),
        library=library if correct else None,
        mechanisms=("library collective",) if library else (rng.choice(("kernels", "copy engine", "multimem")),),
        fingerprint=_MACHINE,
    )  # fmt: skip


def _failure(rng: random.Random, status: Status) -> Failure:
    cause = rng.choice(sorted(CAUSES_OF[status]))
    mismatch = Mismatch(
        rank=3, output="result", index=(17, 4096), got="0.0", expected="1.4140625", wrong_elems=524288,
        total_elems=4194304,
    )  # fmt: skip
    return Failure(
        phase=Phase.CHECK,
        cause=cause,
        detail=f"made up: {cause} on rank 3, in the part that came from rank 5. " * 3,
        mismatch=mismatch if status is Status.WRONG else None,
        log="kernel.cu(12): made-up line\n" * 20,
    )


def _timing(rng: random.Random, size: str) -> Timing:
    speedup = rng.lognormvariate(0.15, 0.45)
    baseline = rng.uniform(80.0, 4000.0)
    samples = tuple(baseline / speedup * rng.uniform(0.98, 1.02) for _ in range(10))
    return Timing(
        size=size, candidate_us=baseline / speedup, baseline_us=baseline, speedup=speedup, iterations=50,
        speedup_interval=Interval(low=speedup * 0.98, high=speedup * 1.02), candidate_samples_us=samples,
        baseline_samples_us=tuple(sample * speedup for sample in samples),
        sol_us=baseline / speedup * min(0.97, 0.4 * speedup * rng.lognormvariate(0.0, 0.4)),
        sol_bound=rng.choice(("link", "hbm", "arithmetic")),
    )  # fmt: skip
