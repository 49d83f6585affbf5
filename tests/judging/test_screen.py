"""The static look at a source: what it objects to, and what it lets through."""

from __future__ import annotations

import warnings

import pytest

from pkb.judging.screen import Objection, screen
from pkb.records.verdict import Cause, Status


def objection(source: str, num_arguments: int = 1) -> Objection:
    found = screen(source, "mine.py", num_arguments)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "source",
    [
        "def solution(x): pass",
        "def solution(x, y=1): pass",
        "def solution(*args): pass",
        "def solution(*, x=1, **rest): pass\nsolution = make(solution)",
        "def solution(a, b): pass\nsolution = make(solution)",
        "@wrapped\ndef solution(): pass",
        "async def solution(x): pass",
        "class solution: pass",
        "solution = lambda x: x",
        "solution: object = make()",
        "a, (solution, b) = make()",
        "from elsewhere import solution",
        "from elsewhere import thing as solution",
        "from elsewhere import *",
        "if True:\n    def solution(x): pass",
        "import torch\ntorch.backends.cuda.matmul.allow_tf32 = True\ndef solution(x): pass",
        "import torch\nx = torch.zeros(3)\nx[0] = 1\nx.grad = None\ndef solution(x): pass",
        "from pkb import symm\nimport pkb.symm, pkb.cuda\nfrom pkb.cuda import compile\ndef solution(x): pass",
        "def time(): pass\ndef solution(x):\n    times.x = 1",
        "'\\d'\ndef solution(x): return 1 is 1",
    ],
)  # fmt: skip
def test_honest_sources_pass(source: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert screen(source, "mine.py", 1) is None


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import pkb.judging.judge", 1),
        ("x = 1\nfrom pkb import launch", 2),
        ("from pkb.problems._find import get_problem", 1),
        ("def f():\n    import pkb.records", 2),
        ("import torch\ntorch.equal = None", 2),
        ("import torch\ntorch.cuda.Event.elapsed_time = None", 2),
        ("import torch\ntorch.a.b[0].c += 1", 2),
        ("import time\ndef f():\n    time.monotonic_ns: int = 3", 3),
        ("import time\ndel time.perf_counter", 2),
        ("import sys\nsys.modules['time'] = None", 2),
        ("import torch\nsetattr(torch.cuda, 'x', 1)", 2),
        ("import builtins, time\nbuiltins.setattr(time, 'time', 1)", 2),
        ("import gc\ngc.callbacks = []", 2),
        ("import gc\nx = gc.get_objects()", 2),
        ("import sys\ndef solution(x):\n    sys._getframe(1)", 3),
        ("def solution(x):\n    return error.__traceback__.tb_frame.f_back", 2),
    ],
)
def test_reaching_for_the_judge_or_for_shared_modules_is_refused(source: str, line: int) -> None:
    found = objection(f"{source}\ndef solution(x): pass")
    assert (found.status, found.cause) == (Status.REFUSED, Cause.FORBIDDEN)
    assert found.detail.startswith(f"line {line}: ")


@pytest.mark.parametrize(
    ("source", "detail", "log"),
    [
        ("def solution(x:\n  pass", "line 1: '(' was never closed", ">    1 | def solution(x:"),
        ("def solution(x):\n    pass\n\n\n    x = = 2\n", "line 5: ", "     3 | \n     4 | \n>    5 |     x = = 2"),
        ("return 1", "line 1: 'return' outside function", ">    1 | return 1"),
        ("def solution(x):\n    nonlocal y", "line 2: no binding for nonlocal 'y' found", "     1 | def solution(x):"),
        ("def solution(x, x): pass", "duplicate argument 'x'", "    1 | def"),
        ("\0", "null bytes", ""),
        ("x = " + "(" * 10_000, "nest", ""),
        ("x = " + "[" * 90 + "]" * 90 + "\n" + "x = " + "-" * 200_000 + "1", "nested too deeply", ""),
        ("x = " + "+".join(["1"] * 100_000), "nested too deeply", ""),
    ],
    ids=lambda value: value[:12],
)
def test_what_is_no_python_fails_with_its_lines(source: str, detail: str, log: str) -> None:
    found = objection(source)
    assert (found.status, found.cause) == (Status.BUILD_FAILED, Cause.SYNTAX)
    assert detail in found.detail
    assert log in found.log
    assert len(found.log) < 2000


@pytest.mark.parametrize(
    "source", ["", "x = solution", "def solutions(x): pass", "x.solution = 1", "import a.solution"]
)
def test_a_file_without_solution_fails(source: str) -> None:
    found = objection(source)
    assert (found.status, found.cause) == (Status.BUILD_FAILED, Cause.NO_SOLUTION)


@pytest.mark.parametrize(
    ("signature", "num_arguments", "word"),
    [
        ("", 1, "takes 0"),
        ("a", 2, "passes 2"),
        ("a, b", 1, "takes 2"),
        ("a, /, b, c=1", 1, "takes 3"),
        ("a, b, *rest", 1, "takes 2"),
        ("a=1", 2, "takes 1"),
    ],
)
def test_another_number_of_arguments_fails(signature: str, num_arguments: int, word: str) -> None:
    found = objection(f"x = 1\ndef solution({signature}): pass", num_arguments)
    assert (found.status, found.cause) == (Status.BUILD_FAILED, Cause.ARITY)
    assert found.detail.startswith("line 2: ")
    assert word in found.detail
