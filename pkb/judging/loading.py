"""Getting ranks ready to call a solution: their inputs first, then the solution."""

from __future__ import annotations

from pkb.judging.config import JudgeConfig
from pkb.judging.schedule import Schedule, max_result_bytes
from pkb.launch.plan import Build, Load, LoadAnswer
from pkb.launch.ranks import RankFailure, RankSet
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
    ranks: RankSet, solution: Solution, num_arguments: int | None, deadline_s: float
) -> tuple[Build, ...]:
    """Import a solution on every rank: on rank 0 first, so that what it compiles is compiled once.

    Raises:
        RankFailure: it cannot be imported or compiled, or does not define what it should.
    """
    command = Load(path=solution.path, solution_sha256=solution.sha256, num_arguments=num_arguments)
    first = LoadAnswer.model_validate(ranks.request_one(0, command, deadline_s).header)
    for rank in range(1, ranks.layout.world_size):
        ranks.request_one(rank, command, deadline_s)
    return first.builds
