"""A solution that builds an extension in its first call gets the time of a build, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb.judging.config import JudgeConfig
from pkb.judging.judge import Judge
from pkb.records.verdict import Status

# Stands in for torch's extension builder: what the judge sees of it is the file name in the stack.
SOLUTION = """
import time
import torch.distributed as dist

_built = []
_builder = compile("def build(s):\\n    time.sleep(s)\\n", "/site-packages/torch/utils/cpp_extension.py", "exec")
exec(_builder, globals())


def solution(tensor):
    if not _built:
        _built.append(build({seconds}))
    result = tensor.clone()
    dist.all_reduce(result)
    return result
"""


@pytest.mark.parametrize(("seconds", "status"), [(2.5, Status.CORRECT), (60.0, Status.HUNG)])
def test_time_for_a_late_build(tmp_path: Path, seconds: float, status: Status) -> None:
    path = tmp_path / "mine.py"
    path.write_text(SOLUTION.format(seconds=seconds))
    config = JudgeConfig(device="cpu", size="tiny", rounds=0, trials=1, deadline_s=1.5, build_deadline_s=6.0)
    with Judge(config) as judge:
        assert judge.judge("allreduce", path).status is status
