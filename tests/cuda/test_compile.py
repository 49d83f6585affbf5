"""Compiling through NVRTC, without a GPU: what comes back, what is cached, what errors say."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pkb.cuda
from pkb.cuda import CompileError, compiler
from pkb.cuda.nvrtc import Compiled, compile_to_cubin
from pkb.records.errors import UsageError

pytest.importorskip("cuda.bindings.nvrtc")

PLAIN = 'extern "C" __global__ void fill(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 1.0f; }'
TEMPLATE = """
#include <cuda_bf16.h>
template <class T> __global__ void twice(T* x) { x[threadIdx.x] = x[threadIdx.x] + x[threadIdx.x]; }
"""
FOUR_STATIC_KIB = """
extern "C" __global__ void reverse(float* x) {
  __shared__ float kept[1024];
  kept[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = kept[1023 - threadIdx.x];
}
"""


def last_build() -> pkb.cuda.Build:
    return pkb.cuda.builds()[-1]


def entries(root: Path) -> list[Path]:
    return sorted(root.glob("cubin/*.cubin"))


def test_makes_a_cubin_for_hopper_without_a_gpu() -> None:
    module = pkb.cuda.compile(PLAIN)
    assert module.cubin.startswith(b"\x7fELF")
    assert module.arch == "sm_90a"
    assert "Kernel('fill'" in repr(module.kernel("fill"))


@pytest.mark.parametrize("arch", ["sm_80", "sm_100a"])
def test_takes_other_architectures(arch: str) -> None:
    assert pkb.cuda.compile(PLAIN, arch=arch).arch == arch
    assert f"for '{arch}'" in last_build().log


def test_build_names_every_kernel_with_what_it_takes() -> None:
    pkb.cuda.compile(TEMPLATE + FOUR_STATIC_KIB, name="mine.cu", kernels=["twice<float>", "twice<__nv_bfloat16>"])
    build = last_build()
    assert (build.name, build.arch, build.cached) == ("mine.cu", "sm_90a", False)
    uses = {use.name: use for use in build.kernels}
    assert set(uses) == {"twice<float>", "twice<__nv_bfloat16>", "reverse"}
    assert uses["reverse"].shared_bytes == 4096
    assert uses["twice<float>"].symbol.startswith("_Z5twice")
    assert all(use.registers > 0 and use.spill_bytes == 0 for use in uses.values())


def test_spills_are_reported() -> None:
    hungry = """
    extern "C" __global__ void __launch_bounds__(1024, 2) hungry(float* x) {
      float v[64];
      for (int i = 0; i < 64; ++i) v[i] = x[i * 1024 + threadIdx.x];
      __syncthreads();
      float sum = 0;
      for (int i = 0; i < 64; ++i) for (int j = 0; j < 64; ++j) sum += v[i] * v[j] * x[i * j];
      for (int i = 0; i < 64; ++i) x[i * 1024 + threadIdx.x] = sum * v[63 - i];
    }
    """
    pkb.cuda.compile(hungry)
    assert last_build().kernels[0].spill_bytes > 0


def test_a_file_finds_headers_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.cuh").write_text("constexpr int kMine = 3;\n")
    source = tmp_path / "kernel.cu"
    source.write_text(
        '#include "mine.cuh"\n#include "signal.cuh"\nextern "C" __global__ void k(int* x) { *x = kMine; }'
    )
    pkb.cuda.compile(source)
    assert last_build().name == "kernel.cu"


def test_options_and_include_paths_reach_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "far.cuh").write_text("constexpr int kFar = 4;\n")
    source = '#include "far.cuh"\nstatic_assert(N == 7); extern "C" __global__ void k(int* x) { *x = kFar; }'
    pkb.cuda.compile(source, options=["-DN=7"], include_paths=[tmp_path])
    with pytest.raises(CompileError, match="static assertion failed"):
        pkb.cuda.compile(source, options=["-DN=8"], include_paths=[tmp_path])


@pytest.mark.parametrize("header", ["cstdint", "stdint.h", "cstddef", "cstdio", "cassert", "cuda.h", "cuda_runtime.h"])
def test_common_host_headers_do_no_harm(header: str) -> None:
    pkb.cuda.compile(f'#include <{header}>\nextern "C" __global__ void k(int* x) {{ *x = 1; }}')


def test_error_names_file_and_line_and_shows_the_source() -> None:
    with pytest.raises(CompileError) as caught:
        pkb.cuda.compile('extern "C" __global__ void k(int* x) {\n  x[0] = nowhere;\n}', name="solution.cu")
    message = str(caught.value)
    assert message.startswith("solution.cu does not compile:\nsolution.cu:2: error:")
    assert "x[0] = nowhere;" in message
    assert "1 error detected" in caught.value.log
    assert "1 error detected" not in message


def test_failures_are_not_cached(cache_root: Path) -> None:
    with pytest.raises(CompileError):
        pkb.cuda.compile("nonsense")
    assert entries(cache_root) == []


def test_second_compile_comes_from_the_cache(cache_root: Path) -> None:
    first = pkb.cuda.compile(TEMPLATE, kernels=["twice<float>"])
    made = last_build()
    second = pkb.cuda.compile(TEMPLATE, kernels=["twice<float>"])
    again = last_build()
    assert second.cubin == first.cubin
    assert (made.cached, again.cached) == (False, True)
    assert (again.kernels, again.log) == (made.kernels, made.log)
    assert "twice<float>" in repr(second.kernel("twice<float>"))
    assert len(entries(cache_root)) == 1


def test_whatever_changes_the_cubin_changes_the_entry(cache_root: Path, tmp_path: Path) -> None:
    header = tmp_path / "deep.cuh"
    header.write_text("constexpr int kDeep = 1;\n")
    (tmp_path / "mine.cuh").write_text('#include "deep.cuh"\n')
    source = '#include "mine.cuh"\nextern "C" __global__ void k(int* x) { *x = kDeep; }'
    pkb.cuda.compile(source, include_paths=[tmp_path])
    header.write_text("constexpr int kDeep = 2;\n")
    pkb.cuda.compile(source, include_paths=[tmp_path])
    pkb.cuda.compile(source, include_paths=[tmp_path], arch="sm_80")
    pkb.cuda.compile(source, include_paths=[tmp_path], options=["-DN=1"])
    pkb.cuda.compile(source + "\n", include_paths=[tmp_path])
    assert not any(build.cached for build in pkb.cuda.builds()[-5:])
    assert len(entries(cache_root)) == 5


def test_computed_include_is_never_taken_stale(tmp_path: Path) -> None:
    header = tmp_path / "mine.cuh"
    source = '#define WHICH "mine.cuh"\n#include WHICH\nextern "C" __global__ void k(int* x) { *x = kMine; }'
    cubins = []
    for value in (1, 2):
        header.write_text(f"constexpr int kMine = {value};\n")
        cubins.append(pkb.cuda.compile(source, include_paths=[tmp_path]).cubin)
    assert cubins[0] != cubins[1]


@pytest.mark.parametrize("damage", [b"", b"{}\n", b"not json\nrest", None])
def test_damaged_entry_is_compiled_again(cache_root: Path, damage: bytes | None) -> None:
    good = pkb.cuda.compile(PLAIN).cubin
    (entry,) = entries(cache_root)
    # None: the cubin itself is cut short.
    entry.write_bytes(entry.read_bytes()[:-5] if damage is None else damage)
    assert pkb.cuda.compile(PLAIN).cubin == good
    assert not last_build().cached
    assert pkb.cuda.compile(PLAIN).cubin == good
    assert last_build().cached


def test_of_callers_that_ask_at_once_one_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    both_asked = threading.Barrier(2)
    num_compiles = []

    def compile_when_both_asked(*args: Any) -> Compiled:
        num_compiles.append(1)
        return compile_to_cubin(*args)

    def ask(_: int) -> bytes:
        both_asked.wait(timeout=30)
        return pkb.cuda.compile(PLAIN).cubin

    monkeypatch.setattr(compiler, "compile_to_cubin", compile_when_both_asked)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(ask, range(2))
    assert first == second
    assert len(num_compiles) == 1
    assert sorted(build.cached for build in pkb.cuda.builds()[-2:]) == [False, True]


def test_unknown_kernel_lists_what_there_is() -> None:
    module = pkb.cuda.compile(PLAIN)
    with pytest.raises(UsageError, match=r"no kernel 'fil'; it has \['fill'\]"):
        module.kernel("fil")


def test_path_given_as_str_is_pointed_out() -> None:
    with pytest.raises(UsageError, match="Give a file as Path"):
        pkb.cuda.compile("kernel.cu")


def test_missing_file_is_pointed_out(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        pkb.cuda.compile(tmp_path / "kernel.cu")


def test_cache_folder_that_cannot_be_made_is_pointed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PKB_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="Set PKB_CACHE_DIR"):
        pkb.cuda.compile(PLAIN)


def test_without_the_extra_import_works_and_compile_says_how_to_install() -> None:
    program = (
        "import sys; sys.modules['cuda'] = None; sys.modules['cuda.bindings'] = None\n"
        "import pkb.cuda\n"
        "from pkb.records.errors import UsageError\n"
        "try: pkb.cuda.compile('int x;')\n"
        "except UsageError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ.copy(), check=True
    )
    assert "pip install 'parallelkernelbench[cuda]'" in done.stdout
