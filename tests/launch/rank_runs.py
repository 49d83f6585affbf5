"""Rank sets that have their arguments and a candidate, made without the judge."""

from __future__ import annotations

import textwrap
from pathlib import Path

from pkb.launch.plan import CallPlan, DrawPlan, Load, Prepare, RunCalls
from pkb.launch.ranks import Layout, Nursery, RankSet
from pkb.problems._find import get_problem
from pkb.records.verdict import DeviceMode

HONEST = """
import torch.distributed as dist

def solution(tensor):
    result = tensor.clone()
    dist.all_reduce(result)
    return result
"""


def layout(world_size: int = 2) -> Layout:
    return Layout(DeviceMode.CPU, world_size, num_threads=1, memory_bytes=0)


def prepare(rank: int = 0, max_result_bytes: int = 1 << 20) -> Prepare:
    draws = (DrawPlan(size="tiny", index=0, exact=False, own_seed=rank + 1, shared_seed=7),)
    folder = str(get_problem("allreduce").folder)
    return Prepare(problem=folder, files={}, dtype="fp32", draws=draws, max_result_bytes=max_result_bytes)


def load(path: Path) -> Load:
    return Load(path=str(path), solution_sha256="0" * 64, num_arguments=1, cache=str(path.parent / "cache"))


def calls(count: int = 1) -> RunCalls:
    return RunCalls(calls=(CallPlan(draw=0),) * count)


def loaded(nursery: Nursery, folder: Path, source: str, world_size: int = 2) -> RankSet:
    """Ranks that wait for their first call."""
    path = folder / "candidate.py"
    path.write_text(textwrap.dedent(source))
    ranks = RankSet(nursery, layout(world_size))
    try:
        ranks.request([prepare(rank) for rank in range(world_size)], 60)
        ranks.request(load(path), 60)
    except BaseException:
        ranks.close()
        raise
    return ranks
