"""What a compiler's output says, cut to what one can act on: place, message, the source line, a caret.

Knows nvcc and NVRTC (the front end and ptxas), g++ and clang, linkers, ninja's frame around them, and Triton.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# template.cu(21): error: ...        nvcc and NVRTC
_FRONT_END = re.compile(
    r"^(?P<file>\S[^():]*)\((?P<line>\d+)\): (?P<kind>(?:catastrophic |fatal )?error)[^:]*: (?P<text>.*)"
)
# use.cu:5:36: error: ...            g++ and clang
_GNU = re.compile(r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):(?:\d+:)? (?P<kind>(?:fatal )?error): (?P<text>.*)")
# use.cu:4:49:   required from here  where a template of a system header was used
_USED_HERE = re.compile(r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):\d+:\s+required from here")
_GNU_SOURCE = re.compile(r"^\s*\d* \| ?(?P<source>.*)")
_PTXAS = re.compile(r"^ptxas (?P<file>.*), line (?P<line>\d+); (?:error|fatal)\s*: (?P<text>.*)")
_PTXAS_PLAIN = re.compile(r"^(?:ptxas|nvlink) (?:error|fatal)\s*: (?P<text>.*)")
_OTHER = re.compile(
    r"undefined (?:reference|symbol)|cannot find -l|\b(?:error|fatal)\b\s*[:#]|\bfatal error\b|ld returned|collect2:",
    re.IGNORECASE,
)
_TRITON = re.compile(r"^at (?P<line>\d+):(?P<column>\d+):$")
_INSTANTIATION = re.compile(r'^\s+instantiation of .* at line (?P<line>\d+)(?: of "?(?P<file>[^"\s]+)"?)?')
_CONSEQUENCE = re.compile(r"Ptx assembly aborted|^\d+ errors? detected|ld returned|collect2:")
"""Says that there were errors, and not which: of use only where nothing else is said."""
_SYSTEM = ("/usr/", "/opt/", "/nix/")
_INSTALLED = ("site-packages/", "dist-packages/", "/cuda/")
_MAX_CHARS = 300
_MAX_EXTRA_LINES = 2


@dataclass(frozen=True)
class Diagnostic:
    """One error: what it says, and the lines that show the place."""

    head: str
    """`file:line: error: message`, or the message alone where no place is known."""
    below: tuple[str, ...] = ()
    """What the message goes on with, the source line, a caret, and where a template was used."""

    @property
    def lines(self) -> tuple[str, ...]:
        """All lines, cut to a width that can be read."""
        return tuple(
            line if len(line) <= _MAX_CHARS else f"{line[:_MAX_CHARS]}..." for line in (self.head, *self.below)
        )


def diagnostics(log: str) -> tuple[Diagnostic, ...]:
    """The errors in a log, in order, each once; a log without any gives none."""
    lines = [line.rstrip() for line in log.splitlines()]
    found: dict[str, Diagnostic] = {}
    for at in range(len(lines)):
        diagnostic = _at(lines, at)
        if diagnostic is not None:
            # The same error in another instance of a template, or of another step of the build, tells nothing new.
            found.setdefault(diagnostic.head, diagnostic)
    causes = [d for d in found.values() if not _CONSEQUENCE.search(d.head)]
    return tuple(causes or found.values())


def _at(lines: Sequence[str], at: int) -> Diagnostic | None:
    """The error that a line begins."""
    line = lines[at]
    if match := _FRONT_END.match(line):
        return _front_end(match, lines[at + 1 :])
    if match := _GNU.match(line):
        return _gnu(match, lines[:at], lines[at + 1 :])
    if match := _PTXAS.match(line):
        return Diagnostic(f"ptxas: PTX line {match['line']}: error: {match['text']}")
    if match := _PTXAS_PLAIN.match(line):
        return Diagnostic(f"ptxas: error: {match['text']}")
    if match := _TRITON.match(line):
        return _triton(match, lines[at + 1 :])
    if _OTHER.search(line) and not line[:1].isspace():
        return Diagnostic(line)
    return None


def _front_end(match: re.Match[str], after: Sequence[str]) -> Diagnostic:
    """Indented lines follow: more of the message, the source line and a caret, then where a template was used."""
    indented = list(_while_indented(after))
    caret = next((i for i, line in enumerate(indented) if line.strip() == "^"), len(indented))
    shown = indented[: caret + 1]
    source, more = shown[-2:], shown[:-2] if caret < len(indented) else shown
    used = next((m for line in indented[caret + 1 :] if (m := _INSTANTIATION.match(line))), None)
    below = [*more[:_MAX_EXTRA_LINES], *(source if caret < len(indented) else [])]
    if used is not None:
        below.append(f"    in a template that is used at {used['file'] or match['file']}:{used['line']}")
    return Diagnostic(_head(match), tuple(below))


def _gnu(match: re.Match[str], before: Sequence[str], after: Sequence[str]) -> Diagnostic:
    source: list[str] = []
    for line in after:
        shown = _GNU_SOURCE.match(line)
        if shown is None or len(source) == 2:
            break
        source.append(f"    {shown['source']}")
    used = _USED_HERE.match(before[-1]) if before else None
    if used is not None and _is_foreign(match["file"]):
        # Nobody can mend a line of a system header.
        head = f"{used['file']}:{used['line']}: error: {match['text']}"
        return Diagnostic(head, (f"    in {match['file']}:{match['line']}, which is used here", *source))
    return Diagnostic(_head(match), tuple(source))


def _triton(match: re.Match[str], after: Sequence[str]) -> Diagnostic | None:
    """The source up to the place follows, then a caret, then the message."""
    caret = next((i for i, line in enumerate(after) if line.strip() == "^"), None)
    if not caret:
        return None
    message = " ".join(" ".join(after[caret + 1 :]).split()) or "does not compile"
    return Diagnostic(f"kernel line {match['line']}: error: {message}", (after[caret - 1], after[caret]))


def _while_indented(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        if not line[:1].isspace():
            return
        yield line


def _head(match: re.Match[str]) -> str:
    return f"{match['file']}:{match['line']}: error: {match['text']}"


def _is_foreign(file: str) -> bool:
    return file.startswith(_SYSTEM) or any(part in file for part in _INSTALLED)
