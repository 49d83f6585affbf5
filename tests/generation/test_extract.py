"""Extraction: in what forms models give code, and what they give instead of it."""

from __future__ import annotations

import json
import textwrap

import pytest

from pkb.generation.extract import extract
from pkb.records.attempt import Extraction

CODE = """import torch


def solution(x):
    return x + 1
"""
DRAFT = "def solution(x):\n    return draft(x)\n"
WITH_CUDA = (
    'import pkb.cuda\n\nSOURCE = r"""\n__global__ void k(float* x) {}\n"""\n\n\ndef solution(x):\n    return x\n'
)
WITH_FENCE = '"""Title.\n\n```python\nx = 1\n```\n"""\n\n\ndef solution(x):\n    return x\n'
SYNTAX_ERROR = "def solution(x):\n    return x +\n"
INDENTED = textwrap.indent(CODE, "   ").replace("   \n", "\n")
QUOTED = "".join(f"> {line}\n" for line in CODE.splitlines())


def fenced(code: str, info: str = "python", ticks: str = "```") -> str:
    end = "" if code.endswith("\n") or not code else "\n"
    return f"{ticks}{info}\n{code}{end}{ticks}\n"


FOUND = {
    "a python block": (fenced(CODE), CODE),
    "no language": (fenced(CODE, ""), CODE),
    "py": (fenced(CODE, "py"), CODE),
    "python3": (fenced(CODE, "python3"), CODE),
    "capital letter": (fenced(CODE, "Python"), CODE),
    "space before the language": (fenced(CODE, " python"), CODE),
    "triton as the language": (fenced(CODE, "triton"), CODE),
    "title behind the language": (fenced(CODE, 'python title="solution.py"'), CODE),
    "file name behind a colon": (fenced(CODE, "python:solution.py"), CODE),
    "file name as the language": (fenced(CODE, "solution.py"), CODE),
    "braces around the language": (fenced(CODE, "{.python .numberLines}"), CODE),
    "tildes": (fenced(CODE, "python", "~~~"), CODE),
    "four backticks": (fenced(CODE, "python", "````"), CODE),
    "spaces behind the fences": (f"```python  \n{CODE}```   \n", CODE),
    "no newline at the end": (fenced(CODE).rstrip("\n"), CODE),
    "carriage returns": (fenced(CODE).replace("\n", "\r\n"), CODE),
    "byte order mark": ("\ufeff" + fenced(CODE), CODE),
    "prose around": (f"Here it is:\n\n{fenced(CODE)}\nIt adds one.", CODE),
    "a fence within a list": (f"1. The file:\n\n   ```python\n{INDENTED}   ```\n", CODE),
    "a fence behind a list mark": (f"- ```python\n{INDENTED}  ```\n", CODE),
    "a quotation": (f"> ```python\n{QUOTED}> ```\n", CODE),
    "a draft, then the answer": (f"First:\n{fenced(DRAFT)}\nBetter:\n{fenced(CODE)}", CODE),
    "the reference, then the answer": (f"{fenced(DRAFT, '')}\nbecomes\n{fenced(CODE)}", CODE),
    "the answer, then a call of it": (f"{fenced(CODE)}\nUse:\n{fenced('y = solution(torch.ones(3))')}", CODE),
    "the answer, then a signature only": (f"{fenced(CODE)}{fenced('def solution(x): ...')}", CODE),
    "the answer, then a command": (f"{fenced(CODE)}\nRun:\n{fenced('pkb judge solution.py', 'bash')}", CODE),
    "a command, then the answer": (f"{fenced('pip install x', 'sh')}{fenced(CODE)}", CODE),
    "the answer, then an unclosed command": (f"{fenced(CODE)}\n```bash\npkb judge solution.py\n", CODE),
    "CUDA in a string": (fenced(WITH_CUDA), WITH_CUDA),
    "a CUDA block, then the file": (fenced("__global__ void k() {}", "cuda") + fenced(WITH_CUDA), WITH_CUDA),
    "a fence in a docstring": (fenced(WITH_FENCE), WITH_FENCE),
    "thoughts before": (f"<think>\n{fenced(DRAFT)}</think>\n{fenced(CODE)}", CODE),
    "thoughts without their beginning": (f"{fenced(DRAFT)}</think>\n{fenced(CODE)}", CODE),
    "fence never closed, code whole": (f"```python\n{CODE}", CODE),
    "tag solution": (f"<solution>\n{CODE}</solution>", CODE),
    "tag file with a name": (f'<file path="solution.py">\n{CODE}</file>\nDone.', CODE),
    "tag around a fence": (f"<answer>\n{fenced(CODE)}</answer>", CODE),
    "no fence at all": (CODE, CODE),
    "no fence, prose above": (f"This is the solution.\n\n{CODE}", CODE),
    "no fence, prose above and below": (f"This is it:\n\n{CODE}\nIt adds one to it.\nThat is all.\n", CODE),
    "JSON with the code": (json.dumps({"thought": "add one", "code": CODE}), CODE),
    "JSON in a block": (fenced(json.dumps({"files": [{"name": "solution.py", "text": CODE}]}) + "\n", "json"), CODE),
    "cell magic": (fenced("%%writefile solution.py\n" + CODE), CODE),
    "here-document": (fenced(f"cat > solution.py <<'EOF'\n{CODE}EOF\n", "bash"), CODE),
    "a mistake in the syntax is the judge's to name": (fenced(SYNTAX_ERROR), SYNTAX_ERROR),
    "no solution() is the judge's to name": (fenced("import torch\n\n\ndef forward(x):\n    return x\n"), None),
    "a lambda": (fenced("import torch\n\nsolution = lambda x: x\n"), "import torch\n\nsolution = lambda x: x\n"),
}  # fmt: skip
CUT = "import torch\n\n\ndef solution(x):\n    y = torch.empty("
NOT_FOUND = {
    "nothing": ("", False, Extraction.EMPTY),
    "blanks": (" \n\n", False, Extraction.EMPTY),
    "thoughts only": (f"<think>\n{fenced(CODE)}</think>\n", False, Extraction.EMPTY),
    "all tokens spent on hidden thoughts": ("", True, Extraction.TRUNCATED),
    "a refusal": ("I cannot help with that.", False, Extraction.NO_CODE),
    "a sketch in words": ("Use a ring. Import the buffers of your peers.", False, Extraction.NO_CODE),
    "a CUDA block only": (fenced("__global__ void k() {}", "cuda"), False, Extraction.NO_CODE),
    "a command only": (fenced("pkb judge solution.py", "bash"), False, Extraction.NO_CODE),
    "pseudocode without a language": (fenced("for each peer: send", ""), False, Extraction.NO_CODE),
    "an empty block": (fenced(""), False, Extraction.NO_CODE),
    "a diff": (fenced("-    return x\n+    return y\n", "diff"), False, Extraction.NO_CODE),
    "cut inside a block": (f"Here:\n```python\n{CUT}", False, Extraction.TRUNCATED),
    "cut between two statements, said so": (f"```python\n{CODE}", True, Extraction.TRUNCATED),
    "cut before solution()": ("```python\nimport torch\n\n\ndef helper():\n", False, Extraction.TRUNCATED),
    "cut in the second version": (f"{fenced(DRAFT)}Better:\n```python\n{CUT}", False, Extraction.TRUNCATED),
    "cut in prose": ("First I look at the reference, which", True, Extraction.TRUNCATED),
    "cut after another block": (f"{fenced('pip install x', 'sh')}Now", True, Extraction.TRUNCATED),
    "cut without a fence": (CUT, True, Extraction.TRUNCATED),
    "cut in thoughts": (f"<think>\nlet me see {fenced(DRAFT)}", True, Extraction.TRUNCATED),
}


def test_there_are_at_least_forty_forms() -> None:
    assert len(FOUND) + len(NOT_FOUND) >= 60


@pytest.mark.parametrize("form", FOUND)
def test_code_is_found(form: str) -> None:
    reply, code = FOUND[form]
    found = extract(reply)
    assert found.extraction is Extraction.FOUND, found.reason
    assert found.reason == ""
    if code is not None:
        assert found.code.strip() == code.strip()


@pytest.mark.parametrize("form", NOT_FOUND)
def test_what_is_no_code_is_named(form: str) -> None:
    reply, cut_off, expected = NOT_FOUND[form]
    found = extract(reply, cut_off=cut_off)
    assert (found.extraction, found.code) == (expected, "")
    assert found.reason.endswith(".")


def test_a_closed_block_counts_even_if_the_words_behind_it_were_cut() -> None:
    assert extract(f"{fenced(CODE)}In short, it", cut_off=True).code == CODE


def test_parts_of_one_file_are_put_together() -> None:
    source = 'SOURCE = r"""\n__global__ void k() {}\n"""\n'
    helper = "import pkb.cuda\n\nmodule = pkb.cuda.compile(SOURCE)\n"
    main = "def solution(x):\n    return module.kernel('k')\n"
    unrelated = "def benchmark():\n    return 3\n"
    reply = "\n".join(["First:", *map(fenced, (source, helper, unrelated)), "Then:", fenced(main)])
    found = extract(reply).code
    assert found.index("SOURCE = ") < found.index("pkb.cuda.compile") < found.index("def solution")
    assert "benchmark" not in found


def test_a_whole_answer_takes_nothing_from_earlier_blocks() -> None:
    assert extract(fenced("import torch\nx = 3\n") + fenced(CODE)).code == CODE


def test_a_very_long_reply_takes_no_time() -> None:
    reply = "word " * 20000 + "\n" + "prose line\n" * 20000 + fenced(CODE) + "more\n" * 20000
    assert extract(reply).code == CODE
    assert extract("import x\n" * 5000 + "def solution(:\n").extraction is Extraction.FOUND


def test_reasons_name_the_blocks_that_were_there() -> None:
    assert "(only cuda)" in extract(fenced("__global__ void k() {}", "cuda")).reason
