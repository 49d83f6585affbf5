"""Pieces of a reply that may be code: fenced blocks, tagged passages, JSON strings, here-documents."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_FENCE = re.compile(r"^(?P<indent>[ \t>]*(?:[-*+] |\d+[.)] )?)(?P<ticks>`{3,}|~{3,})[ \t]*(?P<info>[^`\n]*)$")
_TAGGED = re.compile(
    r"^[ \t]*<(?P<tag>solution|code|answer|file|python)\b[^>\n]*>[ \t]*\n?(?P<code>.*?)(?:^[ \t]*|(?<=\S))</(?P=tag)>",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
_HERE_DOCUMENT = re.compile(
    r"^[^\n]*<<-?[ \t]*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)[^\n]*\n(?P<code>.*?)^(?P=end)[ \t]*$",
    re.DOTALL | re.MULTILINE,
)
_CELL_MAGIC = re.compile(r"\A\s*%%(?:writefile|file|python)\b[^\n]*\n")
_PYTHON = {"python", "python3", "py", "py3", "ipython", "ipython3", "triton", "pytorch", "torch"}
_SHELL = {"bash", "sh", "shell", "zsh", "console"}


@dataclass(frozen=True)
class Block:
    """A passage that is set apart as code."""

    language: str
    """Lower-case word behind the fence, such as `python`; empty where there is none."""
    code: str
    """Its text, without fence and indentation of the fence."""
    closed: bool = True
    """Whether its end was seen."""

    @property
    def may_be_python(self) -> bool:
        """Named as Python, or named as nothing and looking like it."""
        if self.language in _PYTHON:
            return True
        return (
            not self.language and re.search(r"^\s*(def|class|import|from|@)\s*\w", self.code, re.MULTILINE) is not None
        )


def parses(code: str) -> bool:
    """It is Python."""
    try:
        # A candidate may nest so deeply, or hold such characters, that the parser gives up otherwise.
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def blocks_of(text: str) -> list[Block]:
    """All blocks in order: fenced ones; where there are none, tagged passages, else strings of a JSON object."""
    fenced = list(_fenced(text.split("\n")))
    if fenced:
        return [inner for block in fenced for inner in _unwrapped(block)]
    tagged = [Block("python", textwrap.dedent(match["code"])) for match in _TAGGED.finditer(text)]
    return tagged or list(_json_strings(text))


def _fenced(lines: list[str]) -> Iterator[Block]:
    position = 0
    while position < len(lines):
        opening = _FENCE.match(lines[position])
        position += 1
        if opening is None:
            continue
        ends = list(_closing_lines(lines, position, opening["ticks"]))
        body = _body_before(lines, position, ends, opening)
        yield body
        position = len(lines) if not body.closed else _next_line(lines, position, ends, body, opening)


def _closing_lines(lines: list[str], first: int, ticks: str) -> Iterator[int]:
    closing = re.compile(rf"^[ \t>]*{re.escape(ticks[0])}{{{len(ticks)},}}[ \t]*$")
    return (number for number in range(first, len(lines)) if closing.match(lines[number]))


def _body_before(lines: list[str], first: int, ends: list[int], opening: re.Match[str]) -> Block:
    """The block up to the first closing fence; up to a later one if only then it is Python.

    Code may hold a fence itself, in a docstring for example.
    """
    language = _language(opening["info"])
    if not ends:
        return Block(language, _clean(lines[first:], opening["indent"]), closed=False)
    code = _clean(lines[first : ends[0]], opening["indent"])
    if language in _PYTHON and not parses(code):
        for end in ends[1:]:
            longer = _clean(lines[first:end], opening["indent"])
            if parses(longer):
                return Block(language, longer)
    return Block(language, code)


def _next_line(lines: list[str], first: int, ends: list[int], body: Block, opening: re.Match[str]) -> int:
    """Number of the line behind the closing fence of a block."""
    for end in ends:
        if _clean(lines[first:end], opening["indent"]) == body.code:
            return end + 1
    return len(lines)


def _language(info: str) -> str:
    """`python` for `python`, `Python title="solution.py"`, `{.python}`, `solution.py`, `python:solution.py`."""
    word = re.split(r"[\s,;:]", info.strip().strip("{}").lstrip(".").lower(), maxsplit=1)[0].rstrip("}")
    return "python" if word.endswith(".py") else word


def _clean(lines: list[str], indent: str) -> str:
    """Lines without the fence's own indentation, and without the marks of a quotation."""
    if ">" in indent:
        lines = [re.sub(r"^[ \t]*>[ \t]?", "", line) for line in lines]
    elif indent:
        return textwrap.dedent("\n".join(lines)) + "\n"
    return "\n".join(lines) + "\n" if lines else ""


def _unwrapped(block: Block) -> Iterator[Block]:
    """What is inside a block that is no code itself: a JSON object, a shell command that writes a file."""
    if block.language == "json":
        yield from _json_strings(block.code)
    elif block.language in _SHELL and (match := _HERE_DOCUMENT.search(block.code)):
        yield Block("python", match["code"], block.closed)
    else:
        yield Block(block.language, _CELL_MAGIC.sub("", block.code), block.closed)


def _json_strings(text: str) -> Iterator[Block]:
    """Every string of a JSON object that defines something."""
    try:
        value = json.loads(text)
    except ValueError:
        return
    for string in _strings(value):
        if "def " in string:
            yield Block("python", string)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
