"""Static look at a solution's source: cheap, explains itself, and never the only defence."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from pkb.records.verdict import Cause, Status

_JUDGE_ROOMS = ("pkb.cli", "pkb.judging", "pkb.launch", "pkb.problems", "pkb.records")
_PATCHED = ("torch.", "time.", "pkb.", "gc.", "sys.modules")
# Ways from a solution to what called it, or to objects that it was not given.
_INTROSPECTION = frozenset(
    {"_getframe", "_current_frames", "currentframe", "f_back", "f_locals", "tb_frame", "gi_frame", "cr_frame",
     "get_objects", "get_referrers", "get_referents", "settrace", "setprofile", "addaudithook"}
)  # fmt: skip
_MAX_LINE_CHARS = 300
_SETTINGS = ("torch.backends.", "torch._dynamo.config.", "torch._inductor.config.")


@dataclass(frozen=True)
class Objection:
    """Why a source is not even loaded."""

    status: Status
    cause: Cause
    detail: str
    log: str = ""


def screen(source: str, path: str, num_arguments: int) -> Objection | None:
    """The first objection to a source, or None.

    Args:
        source: text of the Python file.
        path: for messages.
        num_arguments: how many positional arguments the problem's `solution` takes.
    """
    try:
        with warnings.catch_warnings():
            # What the compiler warns of in a candidate is no message of the judge.
            warnings.simplefilter("ignore")
            tree = ast.parse(source, filename=path)
            compile(tree, path, "exec", dont_inherit=True)
    except (MemoryError, RecursionError):
        text = "the file cannot be parsed: its expressions are nested too deeply"
        return Objection(Status.BUILD_FAILED, Cause.SYNTAX, text)
    except (SyntaxError, ValueError) as error:
        return Objection(
            Status.BUILD_FAILED,
            Cause.SYNTAX,
            f"the file is not valid Python: {_syntax(error)}",
            _context(source, error),
        )
    for line, what in _forbidden(tree):
        return Objection(Status.REFUSED, Cause.FORBIDDEN, f"line {line}: {what}")
    return _contract(tree, num_arguments)


def _contract(tree: ast.Module, num_arguments: int) -> Objection | None:
    """Object to a file without a `solution`, or with one that takes other arguments."""
    num_bindings = sum(_binds_solution(node) for node in ast.walk(tree))
    if num_bindings == 0:
        return Objection(
            Status.BUILD_FAILED,
            Cause.NO_SOLUTION,
            "the file defines no `solution`. Define a function solution(...) with the reference's arguments.",
        )
    for node in tree.body if num_bindings == 1 else ():
        if isinstance(node, ast.FunctionDef) and node.name == "solution" and not node.decorator_list:
            a = node.args
            positional = len(a.posonlyargs) + len(a.args)
            required = positional - len(a.defaults)
            if required > num_arguments or (positional < num_arguments and a.vararg is None):
                return Objection(
                    Status.BUILD_FAILED,
                    Cause.ARITY,
                    f"line {node.lineno}: solution takes {positional} positional arguments, the problem passes"
                    f" {num_arguments}. Use the reference's signature.",
                )
    return None


def _binds_solution(node: ast.AST) -> bool:
    """Whether a statement may give the module a name `solution`."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name == "solution"
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return any((alias.asname or alias.name) in ("solution", "*") for alias in node.names)
    return isinstance(node, ast.Name) and node.id == "solution" and isinstance(node.ctx, ast.Store)


def _forbidden(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """What a solution has no honest use for: the judge's modules and frames, and patching of torch or of clocks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            names = []
        for name in names:
            if name in _JUDGE_ROOMS or name.startswith(tuple(f"{room}." for room in _JUDGE_ROOMS)):
                yield node.lineno, f"imports {name}; a solution may use pkb.symm and pkb.cuda only."  # type: ignore[attr-defined]
        if isinstance(node, ast.Attribute) and node.attr in _INTROSPECTION:
            yield node.lineno, f"uses {node.attr}; a solution may look at its arguments only."
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)):
            targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else [node.target]
            for target in targets:
                name = _dotted(target)
                if name.startswith(_PATCHED) and not name.startswith(_SETTINGS):
                    yield node.lineno, f"assigns to {name}; a solution may not patch modules that it shares."
        if isinstance(node, ast.Call) and _dotted(node.func) in ("setattr", "builtins.setattr") and node.args:
            name = _dotted(node.args[0])
            if f"{name}.".startswith(_PATCHED):
                yield (
                    node.lineno,
                    f"calls setattr on {name}; a solution may not patch modules that it shares.",
                )


def _dotted(node: ast.AST) -> str:
    """`a.b.c` for an attribute chain or a subscript of one; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    if isinstance(node, ast.Subscript):
        return _dotted(node.value)
    return ""


def _syntax(error: SyntaxError | ValueError) -> str:
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    return str(error)


def _context(source: str, error: SyntaxError | ValueError) -> str:
    """The lines around a syntax error, with a mark."""
    if not isinstance(error, SyntaxError) or error.lineno is None:
        return ""
    lines = source.splitlines()
    first = max(0, error.lineno - 3)
    return "\n".join(
        f"{'>' if i + 1 == error.lineno else ' '} {i + 1:4d} | {line[:_MAX_LINE_CHARS]}"
        for i, line in enumerate(lines[first : error.lineno + 2], start=first)
    )
