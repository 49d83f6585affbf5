"""`pkb doctor`."""

from __future__ import annotations

import click

from pkb.launch.doctor import examine


@click.command("doctor")
def command() -> None:
    """Say what this machine can run, and what is missing for the rest."""
    for finding in examine():
        click.echo(f"{'yes' if finding.works else 'no ':3}  {finding.name:18} {finding.detail}")
