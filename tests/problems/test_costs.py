"""Costs grow with the size, and one rank alone moves nothing over a link."""

from __future__ import annotations

from itertools import pairwise

from problem_cases import judgeside, problem_of

from pkb.problems._spec import Cost


def test_cost_grows_with_size(problem_id: str) -> None:
    problem = problem_of(problem_id)
    for world_size in problem.world_sizes:
        for dtype in problem.dtypes:
            costs = [
                judgeside(problem_id).cost(problem.sizes[name], world_size, dtype)
                for name in ("tiny", "base", "large")
                if name in problem.sizes
            ]
            for small, large in pairwise(costs):
                assert small.hbm_bytes < large.hbm_bytes
                assert small.link_bytes <= large.link_bytes
                assert small.flops <= large.flops
            assert costs[0] != costs[-1] or len(costs) == 1


def test_link_bytes_are_zero_exactly_for_one_rank(problem_id: str) -> None:
    for name, world_size, cost in _all_costs(problem_id):
        assert (cost.link_bytes == 0) == (world_size == 1), f"{name}, W = {world_size}"


def test_costs_are_finite_and_not_negative(problem_id: str) -> None:
    for name, world_size, cost in _all_costs(problem_id):
        numbers = (cost.link_bytes, cost.hbm_bytes, cost.flops)
        assert all(0 <= number < 1e18 for number in numbers), f"{name}, W = {world_size}: {cost}"


def _all_costs(problem_id: str) -> list[tuple[str, int, Cost]]:
    problem = problem_of(problem_id)
    return [
        (name, world_size, judgeside(problem_id).cost(size, world_size, dtype))
        for name, size in problem.sizes.items()
        for world_size in problem.world_sizes
        for dtype in problem.dtypes
    ]
