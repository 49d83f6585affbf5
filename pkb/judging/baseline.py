"""The problem's reference on ranks of its own, alive beside every candidate that is timed against it."""

from __future__ import annotations

import secrets

from pkb.judging.config import JudgeConfig
from pkb.judging.loading import load_solution, prepare_ranks
from pkb.judging.schedule import Schedule
from pkb.judging.timing import Block, Blocks
from pkb.launch.ranks import Layout, Nursery, RankFailure, RankSet
from pkb.problems._spec import Judgeside, Problem
from pkb.records.errors import HarnessError
from pkb.records.solution import Solution


class BaselineRanks:
    """Ranks that run `reference.py`. Trusted, so they are kept for the next candidate of the same problem."""

    def __init__(
        self,
        nursery: Nursery,
        layout: Layout,
        problem: Problem,
        code: Judgeside,
        config: JudgeConfig,
        schedule: Schedule,
    ) -> None:
        """Start the ranks and load the reference.

        Raises:
            HarnessError: the reference does not run.
        """
        self.problem = problem
        self._config = config
        self._schedule = schedule.only_timed()
        self._ranks = RankSet(nursery, layout)
        try:
            prepare_ranks(self._ranks, problem, code, config, self._schedule, secrets.token_bytes(32))
            load_solution(self._ranks, problem, Solution.read(problem.reference_path), None, config.build_deadline_s)
        except RankFailure as failure:
            raise _harness_error(problem, failure) from failure
        except BaseException:
            self.close()
            raise

    def blocks(self, size: str) -> ReferenceBlocks:
        """Timed blocks at one size."""
        return ReferenceBlocks(
            self._ranks,
            self.problem,
            size,
            secrets.token_bytes(32),
            max_calls=self._schedule.timed[size],
            deadline_s=self._config.deadline_s,
        )

    def close(self) -> None:
        """End the ranks."""
        self._ranks.close()


class ReferenceBlocks(Blocks):
    """Blocks of the reference: a failure in them is ours, not the candidate's."""

    def run(self) -> Block:
        """Run one block.

        Raises:
            HarnessError: the reference failed.
        """
        try:
            return super().run()
        except RankFailure as failure:
            raise _harness_error(self._problem, failure) from failure


def _harness_error(problem: Problem, failure: RankFailure) -> HarnessError:
    return HarnessError(f"the reference of {problem.id} failed: {failure}\n{failure.output}")
