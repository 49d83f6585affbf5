"""Judge every solution under solutions/ and append the verdict records to a file.

    python scripts/judge_shipped.py --device shared-gpu --world-sizes 2,4 --out results/h200x1/shared-gpu.jsonl

Exit code 0 when all are correct, 1 when one is not.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pkb.judging.config import JudgeConfig
from pkb.judging.judge import Judge
from pkb.records.verdict import Status

ROOT = Path(__file__).resolve().parents[1]


@click.command()
@click.option("--device", default="auto", show_default=True)
@click.option("--world-sizes", default="2,4", show_default=True)
@click.option("--dtypes", default="bf16,fp32", show_default=True)
@click.option("--sizes", default="base", show_default=True)
@click.option("--rounds", default=10, show_default=True)
@click.option("--only", default="", help="Part of `problem/name` that a solution must have.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(device: str, world_sizes: str, dtypes: str, sizes: str, rounds: int, only: str, out: Path) -> None:
    """Judge all shipped solutions in every combination of world size, dtype and size."""
    folders = [f.parent for f in sorted(ROOT.glob("solutions/*/*/solution.py")) if only in str(f)]
    num_failed = 0
    for world_size in map(int, world_sizes.split(",")):
        for dtype in dtypes.split(","):
            for size in sizes.split(","):
                settings = {
                    "device": device, "world_size": world_size, "dtype": dtype, "size": size, "rounds": rounds
                }  # fmt: skip
                with Judge(JudgeConfig.model_validate(settings)) as judge:
                    for folder in folders:
                        more = folder is not folders[-1]
                        verdict = judge.judge(folder.parent.name, folder, more=more)
                        verdict.save(out)
                        num_failed += verdict.status is not Status.CORRECT
                        spent = sum(verdict.phase_seconds.values())
                        print(f"{folder.relative_to(ROOT)} {spent:.1f} s: {verdict}", flush=True)
    sys.exit(1 if num_failed else 0)


if __name__ == "__main__":
    main()
