"""Prompts: snapshots, what they must say, and what they must not give away. PKB_WRITE_SNAPSHOTS=1 writes them anew."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pkb.cuda import compile as compile_cuda
from pkb.generation.examples import Example, bundle, examples_for
from pkb.generation.extract import Extracted, extract
from pkb.generation.profiles import MACHINES
from pkb.generation.prompt import Budget, prompt_sha256, render_feedback, render_next_turn, render_task
from pkb.judging.config import JudgeConfig
from pkb.judging.screen import screen
from pkb.problems._find import get_problem, list_problems
from pkb.records.attempt import Backend, Extraction
from pkb.records.errors import UsageError
from pkb.records.verdict import Cause, Failure, Interval, Mismatch, Phase, RankState, Timing, Verdict

SNAPSHOTS = Path(__file__).parent / "snapshots"
SHIPPED = Path(__file__).parents[2] / "solutions"
# Shipped solutions change for reasons of their own.
EXAMPLES = [Example("some_problem/some_solution", "def solution(x):\n    return x\n")]
FOUND = Extracted(Extraction.FOUND, "x = 1\n")


def assert_snapshot(name: str, text: str) -> None:
    file = SNAPSHOTS / name
    if os.environ.get("PKB_WRITE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text(), "PKB_WRITE_SNAPSHOTS=1 writes the snapshots anew; then look at their diff"


@pytest.mark.parametrize(
    ("problem", "backend", "hardware", "world_size"),
    [
        ("allreduce", "torch", "h200_2", 2),
        ("allgather_gemm", "cuda", "h100_8", 8),
        ("fp8_allgather_params", "triton", "b200_72", 4),
    ],
)
def test_task(problem: str, backend: str, hardware: str, world_size: int) -> None:
    config = JudgeConfig(world_size=world_size)
    text = render_task(get_problem(problem), config, backend=Backend(backend), hardware=hardware, examples=EXAMPLES)
    assert_snapshot(f"task_{problem}_{backend}_{hardware}.md", text)


def test_task_of_an_agent() -> None:
    text = render_task(
        get_problem("allreduce"),
        JudgeConfig(size="large"),
        backend=Backend.CUDA,
        hardware="b200_8",
        budget=Budget(),
        examples=EXAMPLES,
    )
    assert_snapshot("task_agent.md", text)


@pytest.mark.parametrize("problem", list_problems(), ids=lambda problem: problem.id)
def test_every_problem_has_a_prompt_that_shows_its_reference_and_nothing_of_the_judge(problem: object) -> None:
    problem = get_problem(problem.id)
    config = JudgeConfig(world_size=problem.world_sizes[-1], dtype=problem.dtypes[0])
    text = render_task(problem, config, backend=Backend.CUDA, hardware="h200_8")
    assert problem.reference_path.read_text() in text
    assert not re.search(r"\{\{|\{%|near_miss|def oracle|def inputs|tolerance", text.replace(problem.contract(), ""))
    assert all(f"- {name}: " in text for name in problem.sizes_named("base"))


@pytest.mark.parametrize("backend", Backend)
@pytest.mark.parametrize("problem", ["allreduce", "allgather", "tp_rms_norm", "allgather_gemm", "ddp"])
def test_examples_are_right_python_and_never_of_the_problem(backend: Backend, problem: str) -> None:
    found = examples_for(problem, backend)
    assert 1 <= len(found) <= 2
    for example in found:
        assert not example.name.startswith(f"{problem}/")
        shown = get_problem(example.name.split("/")[0])
        assert screen(example.code, "example.py", shown.num_arguments()) is None
        assert "__file__" not in example.code


@pytest.mark.parametrize("name", ["allgather/sm_stores", "allreduce/cuda"])
def test_a_folder_becomes_one_file_with_the_same_kernels(name: str) -> None:
    kernel = SHIPPED / name / "kernel.cu"
    code = bundle(kernel.parent)
    source = re.search(r'SOURCE = r"""\n(.*?)"""', code, re.DOTALL)
    assert source is not None and source[1] == kernel.read_text()
    assert code.index("SOURCE = ") < code.index("pkb.cuda.compile")
    names: dict[str, object] = {}
    exec(compile(code, "bundled.py", "exec"), names)
    assert names["MODULE"] is not None


def test_what_cannot_be_one_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no solution\.py"):
        bundle(tmp_path)
    (tmp_path / "solution.py").write_text('KERNEL = Path(__file__).with_name("kernel.cu")\n')
    (tmp_path / "kernel.cu").write_text('// """\n')
    with pytest.raises(UsageError, match="raw string"):
        bundle(tmp_path)


def test_the_guide_names_what_there_is() -> None:
    guide = render_task(get_problem("allreduce"), JudgeConfig(), backend=Backend.CUDA, hardware="h200_8", examples=())
    headers = "".join(f'#include "{name}"\n' for name in ("memory.cuh", "signal.cuh", "reduce.cuh"))
    shown = re.findall(r"`((?:load|store|copy|add|wait|warp|block)_\w+)`", guide)
    assert len(shown) >= 9
    uses = "".join(f"using pkb::{name};\n" for name in shown if name != "copy_2d")
    compile_cuda(f'{headers}\n{uses}\nusing pkb::BlockBarrier;\nextern "C" __global__ void k() {{}}\n', kernels=["k"])


@pytest.mark.parametrize("hardware", MACHINES)
def test_hardware_is_described(hardware: str) -> None:
    machine = MACHINES[hardware]
    text = render_task(get_problem("1"), JudgeConfig(), backend=Backend.TORCH, hardware=hardware, examples=EXAMPLES)
    assert f"{machine.num_gpus} x NVIDIA {machine.gpu}" in text
    assert ("multimem.ld_reduce" in text) == machine.multicast


@pytest.mark.parametrize(
    ("settings", "hardware", "message"),
    [
        ({}, "h200", "no hardware profile 'h200'; there are h100_8"),
        ({"world_size": 3}, "h200_8", "runs on 1, 2, 4, 8 ranks"),
        ({"size": "huge"}, "h200_8", "no size 'huge'"),
    ],
)
def test_impossible_requests_are_refused(settings: dict[str, object], hardware: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        render_task(get_problem("1"), JudgeConfig(**settings), backend=Backend.TORCH, hardware=hardware)


MakeVerdict = Callable[..., Verdict]


def test_feedback_on_a_wrong_result(make_verdict: MakeVerdict) -> None:
    mismatch = Mismatch(rank=1, output="result", index=(0, 3), got="1.0", expected="2.0", wrong_elems=7, total_elems=12)
    failure = Failure(
        phase=Phase.CHECK,
        cause=Cause.MISSING_RANK,
        detail="Rank 0's contribution is missing.",
        mismatch=mismatch,
    )
    assert_snapshot("feedback_wrong.md", render_next_turn(make_verdict("wrong", failure=failure), FOUND))


def test_feedback_on_a_hang(make_verdict: MakeVerdict) -> None:
    ranks = (
        RankState(rank=0, state="inside call 2", stack=("solution.py:9 solution",)),
        RankState(rank=1, state="returned from call 2"),
    )
    failure = Failure(phase=Phase.CHECK, cause=Cause.DEADLOCK, detail="Rank 0 waits.", ranks=ranks, log="printed\n")
    assert_snapshot("feedback_hung.md", render_next_turn(make_verdict("hung", failure=failure), FOUND))


def test_feedback_on_a_slow_correct_solution(make_verdict: MakeVerdict) -> None:
    timing = Timing(
        size="base",
        candidate_us=20.0,
        baseline_us=15.0,
        speedup=0.75,
        speedup_interval=Interval(low=0.7, high=0.8),
        iterations=9,
        sol_us=4.0,
        sol_bound="link",
    )
    verdict = make_verdict(timings=(timing,), notes=("built kernel.cu",), library=True, seed="ab" * 32)
    text = render_next_turn(verdict, FOUND)
    assert_snapshot("feedback_correct.md", text)
    assert verdict.seed not in text


def test_feedback_without_code() -> None:
    assert_snapshot("feedback_no_code.md", render_next_turn(None, extract("I cannot.")))
    assert "cut off" in render_feedback(None, extract("```python\nx = (", cut_off=True))


def test_the_hash_of_a_prompt_changes_with_its_text() -> None:
    assert prompt_sha256("a") == prompt_sha256("a") != prompt_sha256("b")
