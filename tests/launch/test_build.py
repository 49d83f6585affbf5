"""Building torch extensions once for all ranks; the compilers are a stand-in that writes a Python module."""

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch.utils import cpp_extension

from pkb.cuda import CompileError
from pkb.launch import build
from pkb.records.errors import HarnessError


class FakeBuilder:
    """Stands for torch's load_inline: writes a module with the source's text in it."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.during: Callable[[Path], None] = lambda folder: None

    def __call__(self, **arguments: Any) -> ModuleType:
        folder = Path(arguments["build_directory"])
        arguments["arches"] = os.environ.get("TORCH_CUDA_ARCH_LIST")
        self.calls.append(arguments)
        self.during(folder)
        library = folder / f"{arguments['name']}.py"
        headers, _, source = arguments["cuda_sources"].partition('#line 1 "mine.cu"\n')
        library.write_text(f"HEADERS = {headers!r}\nSOURCE = {source!r}\n")
        spec = importlib.util.spec_from_file_location(arguments["name"], library)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeBuilder]:
    fake = FakeBuilder()
    monkeypatch.setenv("PKB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    monkeypatch.setattr(cpp_extension, "load_inline", fake)
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", "/usr/local/cuda")
    monkeypatch.setattr(build, "_in_use", {})
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield fake
    for users in build._in_use.values():
        os.close(users)


def test_source_and_flags_reach_torch(builder: FakeBuilder, tmp_path: Path) -> None:
    module = build.compile_cuda_extension("mine", "text", ["-lineinfo"], [str(tmp_path)], ["-lcuda"])
    assert module.SOURCE == "text"
    assert module.HEADERS == "#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n"
    (call,) = builder.calls
    assert (call["name"], call["cpp_sources"], call["with_cuda"]) == ("mine", "", True)
    assert "functions" not in call
    assert call["extra_cuda_cflags"] == ["-O3", "-lineinfo"]
    assert (call["extra_include_paths"], call["extra_ldflags"]) == ([str(tmp_path)], ["-lcuda"])


def test_hopper_is_the_default_without_a_gpu_and_the_variable_is_put_back(builder: FakeBuilder) -> None:
    build.compile_cuda_extension("mine", "text")
    assert builder.calls[0]["arches"] == "9.0a"
    assert "TORCH_CUDA_ARCH_LIST" not in os.environ


def test_given_architectures_are_kept(builder: FakeBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0")
    build.compile_cuda_extension("mine", "text")
    assert builder.calls[0]["arches"] == "8.0"
    assert os.environ["TORCH_CUDA_ARCH_LIST"] == "8.0"


def test_second_request_imports_what_is_there(builder: FakeBuilder) -> None:
    first = build.compile_cuda_extension("mine", "text")
    second = build.compile_cuda_extension("mine", "text")
    assert second.SOURCE == first.SOURCE
    assert len(builder.calls) == 1


def test_whatever_changes_the_library_is_built_anew(
    builder: FakeBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = tmp_path / "mine.cuh"
    header.write_text("1")
    source = '#include "mine.cuh"'
    build.compile_cuda_extension("mine", source, None, [str(tmp_path)])
    header.write_text("2")
    build.compile_cuda_extension("mine", source, None, [str(tmp_path)])
    build.compile_cuda_extension("mine", source, ["-G"], [str(tmp_path)])
    build.compile_cuda_extension("mine", source, None, [str(tmp_path)], ["-lcuda"])
    build.compile_cuda_extension("other", source, None, [str(tmp_path)])
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0")
    build.compile_cuda_extension("mine", source, None, [str(tmp_path)])
    assert len({call["build_directory"] for call in builder.calls}) == len(builder.calls) == 6


def test_of_callers_that_ask_at_once_one_builds(builder: FakeBuilder) -> None:
    both_asked = threading.Barrier(2)

    def ask(_: int) -> str:
        both_asked.wait(timeout=30)
        return str(build.compile_cuda_extension("mine", "text").SOURCE)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, range(2))) == ["text", "text"]
    assert len(builder.calls) == 1


def test_lock_and_library_left_by_a_killed_builder_are_removed(builder: FakeBuilder) -> None:
    seen: list[list[str]] = []

    def killed(folder: Path) -> None:
        (folder / "lock").touch()
        (folder / "mine.so").write_text("half a library")
        raise KeyboardInterrupt

    builder.during = killed
    with pytest.raises(KeyboardInterrupt):
        build.compile_cuda_extension("mine", "text")
    builder.during = lambda folder: seen.append(sorted(f.name for f in folder.iterdir()))
    build.compile_cuda_extension("mine", "text")
    assert seen == [["pkb.lock"]]


def test_damaged_library_is_built_again(builder: FakeBuilder) -> None:
    build.compile_cuda_extension("mine", "text")
    folder = Path(builder.calls[0]["build_directory"])
    (folder / "mine.py").write_text("raise ImportError('damaged')")
    assert build.compile_cuda_extension("mine", "text").SOURCE == "text"
    assert len(builder.calls) == 2


@pytest.mark.parametrize(
    ("error", "first"),
    [
        (
            RuntimeError("Error building extension 'mine': [1/2] nvcc\ncuda.cu(3): error: bad\n    x;\n"),
            "cuda.cu:3: error: bad",
        ),
        (ImportError("/x/mine.so: undefined symbol: _Z1fv"), "/x/mine.so: undefined symbol: _Z1fv"),
    ],
)
def test_failed_build_is_a_compile_error_with_the_whole_output(
    builder: FakeBuilder, error: Exception, first: str
) -> None:
    def fail(folder: Path) -> None:
        raise error

    builder.during = fail
    with pytest.raises(CompileError, match="mine does not compile") as caught:
        build.compile_cuda_extension("mine", "text")
    assert caught.value.log == str(error)
    assert caught.value.lines[0] == first


def test_machine_without_nvcc_is_not_the_candidates_fault(
    builder: FakeBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    with pytest.raises(HarnessError, match="needs nvcc"):
        build.compile_cuda_extension("mine", "text")


def test_existing_solution_files_find_the_helper(builder: FakeBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "utils", raising=False)
    monkeypatch.delitem(sys.modules, "utils.cuda_helpers", raising=False)
    build.install_public_helpers()
    scope: dict[str, Any] = {}
    exec("from utils.cuda_helpers import compile_cuda_extension\nimport utils.cuda_helpers", scope)
    assert scope["compile_cuda_extension"]("mine", "text").SOURCE == "text"


def test_each_solution_has_its_folder(builder: FakeBuilder) -> None:
    first, second = build.extensions_dir("a" * 64), build.extensions_dir("b" * 64)
    assert first != second and first.is_dir() and second.is_dir()
    assert build.extensions_dir("a" * 64) == first


def test_lock_of_a_killed_builder_goes_when_the_folder_is_asked_for_again(builder: FakeBuilder) -> None:
    left = build.extensions_dir("a" * 64) / "mine" / "lock"
    left.parent.mkdir()
    for _ in range(2):
        left.touch()
        build.extensions_dir("a" * 64)
        assert not left.exists()


def test_lock_of_torch_stays_while_another_living_process_uses_the_folder(builder: FakeBuilder) -> None:
    program = (
        "import sys; from pkb.launch.build import extensions_dir; print(extensions_dir('a' * 64), flush=True);"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ.copy(),
    ) as other:
        assert other.stdout is not None
        lock = Path(other.stdout.readline().strip()) / "mine" / "lock"
        lock.parent.mkdir()
        lock.touch()
        build.extensions_dir("a" * 64)
        assert lock.exists()
        other.communicate()
    build.extensions_dir("a" * 64)
    assert not lock.exists()
