"""Judge the portable solutions and two wrong ones on 2 and 4 CPU ranks, against the gloo baseline."""

import sys
from pathlib import Path

from pkb.cli.progress import ProgressLine
from pkb.cli.verdict_text import lines
from pkb.judging.config import JudgeConfig
from pkb.judging.judge import Judge
from pkb.records.verdict import Status

ROOT = Path(__file__).resolve().parents[1]
CANDIDATES = [  # problem, solution, status that it must get
    ("allreduce", "solutions/allreduce/portable", Status.CORRECT),
    ("allreduce", "examples/wrong/allreduce_no_leave_barrier.py", Status.WRONG),
    ("allgather", "solutions/allgather/portable", Status.CORRECT),
    ("allgather", "examples/wrong/allgather_rotated.py", Status.WRONG),
    ("tp_rms_norm", "solutions/tp_rms_norm/portable", Status.CORRECT),
]

surprises = 0
for world_size in (2, 4):
    config = JudgeConfig(device="cpu", world_size=world_size, size="base")
    with ProgressLine("demo") as progress, Judge(config, listener=progress) as judge:
        for problem, path, expected in CANDIDATES:
            progress.name(f"{world_size} ranks: {path}")
            verdict = judge.judge(problem, ROOT / path, more=path != CANDIDATES[-1][1])
            print("\n".join(lines(verdict)), end="\n\n", flush=True)
            surprises += verdict.status is not expected
sys.exit(1 if surprises else 0)
