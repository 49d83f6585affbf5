"""Getting ranks ready to call a solution: their inputs first, then the solution."""

from __future__ import annotations

import sys
from pathlib import Path

from pkb.judging.config import JudgeConfig
from pkb.judging.schedule import Schedule, max_result_bytes
from pkb.launch.build import solution_cache
from pkb.launch.plan import Build, Load, LoadAnswer, Seal
from pkb.launch.ranks import RankFailure, RankSet
from pkb.problems._spec import FOLDER as PROBLEMS
from pkb.problems._spec import Judgeside, Problem
from pkb.records.errors import HarnessError
from pkb.records.solution import Solution

_PREPARE_DEADLINE_S = 300.0


def prepare_ranks(
    ranks: RankSet, problem: Problem, code: Judgeside, config: JudgeConfig, schedule: Schedule, secret: bytes
) -> None:
    """Let every rank draw its arguments.

    Raises:
        HarnessError: a rank failed; nothing of a candidate has been loaded, so it is not its fault.
    """
    limit = max_result_bytes(problem, code, config, schedule)
    commands = [schedule.prepare(problem, config, secret, rank, limit) for rank in range(ranks.layout.world_size)]
    try:
        ranks.request(commands, _PREPARE_DEADLINE_S)
    except RankFailure as failure:
        raise HarnessError(f"inputs of {problem.id} could not be made: {failure}\n{failure.output}") from failure


def load_solution(
    ranks: RankSet, problem: Problem, solution: Solution, num_arguments: int | None, deadline_s: float
) -> tuple[Build, ...]:
    """Import a solution on every rank: on rank 0 first, so that what it compiles is compiled once.

    Raises:
        RankFailure: it cannot be imported or compiled, or does not define what it should.
        HarnessError: a rank could not close its sandbox.
    """
    command = Load(
        path=solution.path,
        solution_sha256=solution.sha256,
        num_arguments=num_arguments,
        cache=str(solution_cache(solution.sha256)),
        seal=_seal(problem, solution) if ranks.is_sandboxed else None,
    )
    answers = []
    for rank in range(ranks.layout.world_size):
        try:
            answers.append(LoadAnswer.model_validate(ranks.request_one(rank, command, deadline_s).header))
        except RankFailure as failure:
            if failure.fault is not None and failure.fault.kind == "sandbox":
                raise HarnessError(f"{failure}. Use --isolation off to judge without a sandbox.") from failure
            raise
    return answers[0].builds


def _seal(problem: Problem, solution: Solution) -> Seal:
    """Hide what a candidate could copy answers from: problems, results, and other solutions."""
    package = Path(__file__).resolve().parents[1]
    checkout = package.parent
    unwanted = [PROBLEMS, package / "_solutions"]
    if not problem.folder.is_relative_to(PROBLEMS):
        unwanted.append(problem.folder.resolve())
    if (checkout / "pyproject.toml").is_file():
        unwanted += [folder for folder in checkout.iterdir() if folder.is_dir() and folder != package]
    # A candidate must be able to go on importing.
    python = Path(sys.prefix).resolve()
    hidden = [folder for folder in unwanted if not any(part.is_relative_to(folder) for part in (python, package))]
    folder = Path(solution.path).parent
    files = {name: (folder / name).read_bytes().decode("utf-8", "surrogateescape") for name in solution.files}
    return Seal(hidden=tuple(sorted(map(str, hidden))), files=files)
