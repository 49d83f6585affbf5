"""The lines of a compiler's log that matter."""

import pickle

from pkb.cuda import CompileError
from pkb.cuda.errors import relevant_lines

NVCC = """\
[1/3] /usr/bin/g++ -c main.cpp
[2/3] /usr/local/cuda/bin/nvcc -c cuda.cu
FAILED: cuda.cuda.o
cuda.cu(7): warning #177-D: variable "unused" was declared but never referenced
    int unused = 3;
        ^

cuda.cu(12): error: identifier "nowhere" is undefined
    x[0] = nowhere;
           ^

1 error detected in the compilation of "cuda.cu".
ninja: build stopped: subcommand failed.
"""


def test_error_and_its_source_are_kept_and_the_rest_is_not() -> None:
    assert relevant_lines(NVCC) == (
        'cuda.cu:12: error: identifier "nowhere" is undefined',
        "    x[0] = nowhere;",
        "           ^",
    )


def test_errors_of_other_tools_are_known() -> None:
    for line, told in (
        (
            "main.cpp:3:10: fatal error: missing.h: No such file or directory",
            "main.cpp:3: error: missing.h: No such file or directory",
        ),
        ("ptxas fatal   : Unresolved extern function 'f'", "ptxas: error: Unresolved extern function 'f'"),
        ("/usr/bin/ld: x.o: undefined reference to `f()'", "/usr/bin/ld: x.o: undefined reference to `f()'"),
        ("ImportError: /x/ext.so: undefined symbol: _Z1fv", "ImportError: /x/ext.so: undefined symbol: _Z1fv"),
        (
            "ptxas error   : Entry function 'k' uses too much shared data",
            "ptxas: error: Entry function 'k' uses too much shared data",
        ),
    ):
        assert relevant_lines(f"[1/2] something\n{line}\nmore\n") == (told,)


def test_log_without_an_error_gives_its_end() -> None:
    assert relevant_lines("first\nsecond\nthird\n", limit=2) == ("second", "third")


def test_many_errors_are_cut() -> None:
    log = "\n".join(f"k.cu({n}): error: bad" for n in range(100))
    assert len(relevant_lines(log, limit=30)) == 30


def test_error_survives_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(CompileError("mine", NVCC)))
    assert str(error).startswith("mine does not compile:\ncuda.cu:12: error")
    assert error.log == NVCC
