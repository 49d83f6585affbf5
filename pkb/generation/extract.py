"""From a model's reply to the code in it, or to the reason why there is none."""

from __future__ import annotations

import ast
import builtins
import re
from dataclasses import dataclass

from pkb.generation.blocks import Block, blocks_of, parses
from pkb.records.attempt import Extraction

_DEFINES = re.compile(r"^(?:async\s+)?def\s+solution\s*\(|^solution\s*[:=]", re.MULTILINE)
_CODE_LINE = re.compile(r"(?:import|from|def|class|async def)\s+\w|@\w|#!|\"\"\"|r\"\"\"|[A-Z_]+ = ")
_THINKING = re.compile(r"<(think|thinking|reasoning)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_THINKING_END = re.compile(r"\A.*?</(?:think|thinking|reasoning)>", re.DOTALL | re.IGNORECASE)
_MAX_TAIL_LINES = 200
"""Lines of prose below unfenced code that are looked through for its end."""


@dataclass(frozen=True)
class Extracted:
    """What was found in a reply."""

    extraction: Extraction
    code: str = ""
    """The Python file; empty unless it was found."""
    reason: str = ""
    """Why nothing was found, as a sentence that the model can act on."""


def extract(reply: str, *, cut_off: bool = False) -> Extracted:
    """Find the Python file that a reply answers with.

    The last block that defines `solution` counts; earlier blocks are put in front of it if it uses what they define.

    Args:
        reply: text of the reply.
        cut_off: the provider said that it stopped at a limit on tokens.
    """
    text = _visible(reply)
    if not text.strip():
        if cut_off:
            return _truncated("The reply was cut off by the limit on its length before it said anything.")
        return Extracted(Extraction.EMPTY, reason="The reply is empty.")
    blocks = blocks_of(text)
    if not blocks:
        return _from_plain_text(text, cut_off=cut_off)
    last = blocks[-1]
    if not last.closed and last.language not in _NOT_CODE and (cut_off or not _is_whole(last.code)):
        return _truncated(
            "The reply ended inside its code block: the closing fence is missing and the code is cut off."
        )
    chosen = _choose(blocks)
    if chosen is not None:
        return Extracted(Extraction.FOUND, chosen)
    if cut_off:
        return _truncated("The reply was cut off by the limit on its length before its Python code.")
    others = sorted({block.language for block in blocks if block.language})
    kinds = f" (only {', '.join(others)})" if others else ""
    return Extracted(
        Extraction.NO_CODE,
        reason=f"The reply has no block of Python code{kinds}. Give the whole Python file in one ```python block.",
    )


_NOT_CODE = {"text", "txt", "bash", "sh", "shell", "console", "markdown", "md", "math", "latex"}


def _truncated(reason: str) -> Extracted:
    return Extracted(Extraction.TRUNCATED, reason=reason)


def _visible(reply: str) -> str:
    """The reply without byte order mark, carriage returns, and what a model thought aloud before it answered."""
    text = reply.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return _THINKING_END.sub("", _THINKING.sub("", text))


def _is_whole(code: str) -> bool:
    return bool(_DEFINES.search(code)) and parses(code)


def _choose(blocks: list[Block]) -> str | None:
    """The code that answers; None if no block is Python."""
    python = [block for block in blocks if block.may_be_python and block.code.strip()]
    defining = [block for block in python if _DEFINES.search(block.code)]
    bodies = [block for block in defining if not _is_stub(block.code)]
    if bodies or defining:
        block = (bodies or defining)[-1]
        return _completed(block, python[: python.index(block)])
    # Without a solution(...) the judge will say so; the longest block is what it should be told about.
    return max((block.code for block in python), key=len, default=None)


def _is_stub(code: str) -> bool:
    """`solution` is only hinted at: its body is `...`, `pass` or a docstring."""
    if not parses(code):
        return False
    for node in ast.parse(code).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == "solution":
            return all(
                isinstance(part, ast.Pass) or (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
                for part in node.body
            )
    return False


def _completed(block: Block, earlier: list[Block]) -> str:
    """The block, with those earlier blocks in front that define names which it uses and does not bind."""
    if not parses(block.code):
        return block.code
    code = block.code
    for part in reversed(earlier):
        if parses(part.code) and not _DEFINES.search(part.code) and _bound(part.code) & _unbound(code):
            code = f"{part.code.rstrip()}\n\n\n{code}"
    return code


def _bound(code: str) -> set[str]:
    """Names that a file binds at its top level."""
    found: set[str] = set()
    for node in ast.parse(code).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        else:
            found |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return found


def _unbound(code: str) -> set[str]:
    """Names that a file reads and binds nowhere."""
    tree = ast.parse(code)
    bound = _bound(code) | set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
    return {name.id for name in names if isinstance(name.ctx, ast.Load)} - bound


def _from_plain_text(text: str, *, cut_off: bool) -> Extracted:
    """Code that stands in the reply without any mark, perhaps with prose above and below."""
    lines = text.split("\n")
    first = next((number for number, line in enumerate(lines) if _CODE_LINE.match(line)), None)
    if first is not None:
        shortest = max(first + 1, len(lines) - _MAX_TAIL_LINES)
        for end in range(len(lines), shortest - 1, -1):
            code = "\n".join(lines[first:end]).rstrip() + "\n"
            if _DEFINES.search(code) and parses(code):
                whole = end == len(lines)
                return _truncated(_CUT) if cut_off and whole else Extracted(Extraction.FOUND, code)
        code = "\n".join(lines[first:])
        if _DEFINES.search(code) and not cut_off:
            return Extracted(Extraction.FOUND, code)
    if cut_off:
        return _truncated(_CUT)
    return Extracted(
        Extraction.NO_CODE, reason="The reply has no code. Give the whole Python file in one ```python block."
    )


_CUT = "The reply was cut off by the limit on its length."
