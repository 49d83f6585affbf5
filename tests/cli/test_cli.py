"""The command line: options, exit codes, what goes to stdout and what to stderr."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner
from commands import ROOT, pkb_command

from pkb.cli import judge as judge_command
from pkb.cli.main import cli, run
from pkb.records.errors import HarnessError, UsageError
from pkb.records.verdict import Verdict

# Every option there is: a new one is a decision, made here first.
OPTIONS = {
    "list": ["--group", "--parallelism", "--world-size"],
    "show": ["--dtype", "--gpu", "--source", "--world-size"],
    "judge": [
        "--build-only", "--deadline", "--device", "--dtype", "--isolation", "--json", "--problem", "--replay",
        "--rounds", "--size", "--trials", "--world-size",
    ],
    "baseline": [
        "--deadline", "--device", "--dtype", "--isolation", "--json", "--rounds", "--size", "--trials", "--world-size",
    ],
    "generate": [
        "--attempts", "--backend", "--device", "--hardware", "--max-connections", "--mode", "--model", "--problems",
        "--replay", "--set", "--size", "--turns", "--world-size", "-o",
    ],
    "report": ["-o"],
    "export": ["--format", "-o"],
    "new-problem": [],
    "check-problem": ["--slow"],
    "doctor": [],
}  # fmt: skip


def test_commands_and_options_are_the_frozen_ones() -> None:
    context = click.Context(cli)
    found = {}
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        found[name] = sorted(p.opts[0] for p in command.params if isinstance(p, click.Option))
    assert found == OPTIONS
    # Beyond ten there are only those of `judge` that a feedback loop and a failure need, and of `generate`,
    # which names a model, a prompt and a judge.
    assert max(len(options) for options in OPTIONS.values()) <= 14


def test_list_shows_numbers_ids_and_titles() -> None:
    result = CliRunner().invoke(cli, ["list", "--group", "collective"])
    assert result.exit_code == 0
    # Exchanges of experts, sequences and graphs follow.
    assert [line.split()[:2] for line in result.output.splitlines()[:8]] == [
        ["1", "allreduce"],
        ["2", "allgather"],
        ["3", "broadcast"],
        ["4", "reduce"],
        ["5", "scatter"],
        ["6", "gather"],
        ["7", "reducescatter"],
        ["8", "alltoall"],
    ]


def test_show_prints_contract_and_sizes() -> None:
    result = CliRunner().invoke(cli, ["show", "tp_rms"])
    assert result.exit_code == 0
    for text in ("18 tp_rms_norm", "RMSNorm", "variance_epsilon", "base", "large"):
        assert text in result.output


def test_show_takes_a_world_size_that_the_problem_allows() -> None:
    result = CliRunner().invoke(cli, ["show", "moe_ep_narrow"])
    assert result.exit_code == 0
    assert "sizes, on 4 ranks" in result.output


def test_show_source_prints_the_reference_byte_for_byte() -> None:
    result = CliRunner().invoke(cli, ["show", "1", "--source"])
    assert result.output == (ROOT / "pkb/problems/allreduce/reference.py").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "nothing_like_it"], "no problem 'nothing_like_it'"),
        (["show", "all"], "stands for several problems"),
        (["list", "--group", "gem"], "no problem has group 'gem'. There are group: "),
        (["judge", "missing.py", "--problem", "1"], "missing.py: no such file"),
        (["judge", "docs", "--problem", "1"], "is a directory without solution.py"),
        (["judge", "README.md", "--problem", "1"], "expected a Python file"),
        (["judge", "--problem", "1"], "Missing argument"),
        (["judge", "examples/demo.py", "--problem", "1", "--world-size", "0"], "not in the range"),
        (["judge", "examples/demo.py", "--problem", "1", "--world-size", "3"], "runs on 1, 2, 4, 8 ranks"),
        (["judge", "examples/demo.py", "--problem", "1", "--size", "huge"], "no size 'huge'"),
        (["unknown"], "No such command"),
    ],
)
def test_usage_errors_exit_with_2_and_say_what_to_do(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert run(lambda: cli.main(arguments, standalone_mode=False)) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(("error", "code"), [(UsageError("x"), 2), (HarnessError("x"), 3), (KeyboardInterrupt(), 130)])
def test_errors_become_exit_codes(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise error

    assert run(fail) == code
    assert capsys.readouterr().err


def test_judge_prints_results_on_stdout_and_talk_on_stderr() -> None:
    right, wrong = "solutions/allreduce/portable", "tests/judging/wrong/allreduce_mean.py"
    done = pkb_command(
        "judge", right, wrong, "--problem", "allreduce", "--device", "cpu", "--size", "tiny", "--rounds", "0", "--json"
    )
    assert done.returncode == 1, done.stderr
    verdicts = [Verdict.model_validate(json.loads(line)) for line in done.stdout.splitlines()]
    assert [verdict.status for verdict in verdicts] == ["correct", "wrong"]
    assert "check" in done.stderr


def test_build_only_compiles_every_shipped_cuda_solution() -> None:
    kernels = sorted(ROOT.glob("solutions/*/*/kernel.cu"))
    assert len(kernels) >= 4
    for kernel in kernels:
        done = pkb_command("judge", str(kernel.parent), "--problem", kernel.parts[-3], "--build-only", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        verdict = Verdict.model_validate(json.loads(done.stdout))
        assert verdict.build_only
        assert any("sm_90a" in note for note in verdict.notes)


def test_doctor_says_what_runs() -> None:
    result = CliRunner().invoke(cli, ["doctor"])
    assert result.exit_code == 0
    assert "cpu ranks" in result.output and "shared-gpu ranks" in result.output


def test_exit_codes_of_statuses(make_verdict: object) -> None:
    statuses = {"correct": 0, "wrong": 1, "invalid": 3}
    assert callable(make_verdict)
    for status, code in statuses.items():
        assert judge_command.exit_code(make_verdict(status)) == code
