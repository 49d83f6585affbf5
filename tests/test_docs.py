"""Docs say what is there: generated pages are fresh, links lead somewhere, commands and names exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from pkb.cli.main import cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PATH = re.compile(
    r"(?<![\w/.])((?:docs|pkb|scripts|solutions|examples|benchmarks|results|tests)/[\w/.-]*[\w])(?![\w/]*[<*])"
)


def test_generated_pages_are_fresh() -> None:
    done = subprocess.run([sys.executable, "scripts/generate_docs.py", "--check"], cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_paths_exist(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if not link.startswith("http")]
    missing = [link for link in links if not (page.parent / link).exists()]
    missing += [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_and_options_exist(page: Path) -> None:
    context = click.Context(cli)
    for line in re.findall(r"pkb ((?:list|show|judge|baseline|doctor|[a-z-]+)\b[^`\n#]*)", page.read_text()):
        words = line.split()
        command = cli.get_command(context, words[0])
        if command is None:
            assert not any(word.startswith("--") for word in words), f"no command: pkb {line}"
            continue
        known = {opt for parameter in command.params for opt in parameter.opts} | {"--help"}
        unknown = [w for w in words if w.startswith("--") and w.split("=")[0] not in known]
        assert not unknown, f"pkb {line}"
