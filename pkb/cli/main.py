"""Entry point of `pkb`; commands are imported when they are called, so that `pkb --help` is quick."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from pkb.records.errors import HarnessError, UsageError

EXIT_NOT_CORRECT = 1
EXIT_USAGE = 2
EXIT_HARNESS = 3

# Command -> (module, what `pkb --help` says).
_COMMANDS: Mapping[str, tuple[str, str]] = {
    "list": ("pkb.cli.list_", "List the problems."),
    "show": ("pkb.cli.show", "Show a problem's contract, sizes and cost."),
    "judge": ("pkb.cli.judge", "Judge solutions: correct? how fast? what went wrong?"),
    "baseline": ("pkb.cli.baseline", "Check and time a problem's own reference."),
    "generate": ("pkb.cli.generate", "Ask a model for solutions and judge them."),
    "report": ("pkb.cli.report", "Score runs of models and compare them, as HTML, Markdown and CSV."),
    "export": ("pkb.cli.export", "Write the turns of runs as rows for training, as JSON Lines or Parquet."),
    "new-problem": ("pkb.cli.new_problem", "Make the two files of a new problem."),
    "check-problem": ("pkb.cli.check_problem", "Run the generic tests on one problem."),
    "doctor": ("pkb.cli.doctor", "Say what this machine can run, and why not more."),
}


class _LazyGroup(click.Group):
    """Knows its commands by name and imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(_COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="parallelkernelbench", prog_name="pkb")
def cli() -> None:
    """ParallelKernelBench: benchmark and judge for multi-GPU kernels.

    Results go to stdout, talk to stderr. Exit codes: 0 correct, 1 not correct, 2 usage, 3 the judge's own fault.
    """


def main() -> None:
    """Run the command line and exit; errors made on purpose are shown without a traceback."""
    sys.exit(run(lambda: cli.main(standalone_mode=False)))


def run(command: Callable[[], Any]) -> int:
    """Exit code of a command."""
    try:
        code = command()
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except UsageError as error:
        click.echo(f"Error: {error}", err=True)
        return EXIT_USAGE
    except HarnessError as error:
        click.echo(f"The judge failed: {error}", err=True)
        return EXIT_HARNESS
    except (KeyboardInterrupt, click.Abort):
        click.echo("Interrupted; all rank processes have been ended.", err=True)
        return 130
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    main()
