"""`pkb check-problem`."""

from __future__ import annotations

import subprocess
import sys

import click

from pkb.problems._spec import FOLDER
from pkb.records.errors import UsageError

# Exit codes of pytest: 1 is a failed test, 2 an interruption or an error while tests are collected.
_PYTEST_FAILED = 1
_PYTEST_INTERRUPTED = 2


@click.command("check-problem")
@click.argument("name", metavar="NAME")
@click.option("--slow", is_flag=True, help="The slow tests: 8 ranks, and the base size.")
def command(name: str, slow: bool) -> int:
    """Run the generic tests on one problem until one fails, in the order in which an author writes.

    NAME is the whole name of the folder, since it may be half written.
    """
    root = FOLDER.parents[1]
    tests = root / "tests" / "problems"
    if not tests.is_dir():
        raise UsageError(f"check-problem runs the tests of a checkout, and {tests} is not there. Clone the repository.")
    if not (FOLDER / name).is_dir():
        raise UsageError(f"there is no folder {FOLDER / name}. Make it with `pkb new-problem {name}`.")
    marks = ["-m", "slow"] if slow else []
    command_line = [sys.executable, "-m", "pytest", str(tests), "--problem", name, "-x", "--tb=short", *marks]
    done = subprocess.run(command_line, cwd=root, check=False)
    if done.returncode in (0, _PYTEST_FAILED, _PYTEST_INTERRUPTED):
        return min(done.returncode, 1)
    raise UsageError("the tests did not run; see above. They need the `dev` extra: pip install -e '.[dev]'.")
