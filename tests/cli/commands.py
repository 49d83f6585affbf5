"""The command line as a user runs it: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def pkb_command(*arguments: str, checkout: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run `pkb` from a checkout."""
    return subprocess.run(
        [sys.executable, "-m", "pkb.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
    )
