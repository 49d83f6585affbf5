"""Where headers are looked for, and how a source's includes are followed."""

from pathlib import Path

import pytest

import pkb.cuda
from pkb.cuda.headers import OWN_HEADERS, digest_of_includes, has_toolkit_headers, toolkit_includes

OWN = sorted(header.name for header in OWN_HEADERS.glob("*.cuh"))


@pytest.fixture
def roots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with nothing but a toolkit in a folder that CUDA_HOME names."""
    toolkit_includes.cache_clear()
    monkeypatch.setattr("pkb.cuda.headers._wheel_locations", lambda package: [])
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def forget_roots() -> None:
    toolkit_includes.cache_clear()


def test_wheels_come_with_cuda_headers() -> None:
    pytest.importorskip("nvidia.cu13")
    assert has_toolkit_headers()
    assert (toolkit_includes()[0] / "cuda_bf16.h").is_file()


def test_toolkit_of_cuda_home_is_found(roots: Path) -> None:
    (roots / "include" / "cccl").mkdir(parents=True)
    assert toolkit_includes()[:2] == (roots / "include", roots / "include" / "cccl")
    toolkit_includes.cache_clear()


@pytest.mark.parametrize("header", OWN)
def test_every_own_header_compiles_alone(header: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    pkb.cuda.compile(f'#include "{header}"\nextern "C" __global__ void k(float* x) {{ x[0] = 1; }}')
    assert "warning" not in pkb.cuda.builds()[-1].log


@pytest.mark.parametrize("header", OWN)
def test_every_own_header_says_first_what_it_is_for(header: str) -> None:
    assert (OWN_HEADERS / header).read_text().startswith("// ")


def test_what_no_kernel_here_uses_compiles_too() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    source = """
    #include "reduce.cuh"
    #include "signal.cuh"
    extern "C" __global__ void k(float* x, unsigned* done) {
      __shared__ float parts[32];
      x[threadIdx.x] = pkb::block_sum(x[threadIdx.x], parts);
      if (threadIdx.x == 0) pkb::add_release(done, 1);
      pkb::wait_signal(done, gridDim.x, "all blocks", 0, 0);
    }
    """
    pkb.cuda.compile(source)
    assert [use.name for use in pkb.cuda.builds()[-1].kernels] == ["k"]


def test_digest_follows_includes_of_includes(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "outer.cuh").write_text('#include "inner/deep.cuh"\n')
    (tmp_path / "inner" / "deep.cuh").write_text('#include "beside.cuh"\n')
    beside = tmp_path / "inner" / "beside.cuh"
    beside.write_text("1")
    before = digest_of_includes('  #  include "outer.cuh"', [tmp_path])
    assert digest_of_includes('  #  include "outer.cuh"', [tmp_path]) == before
    beside.write_text("2")
    assert digest_of_includes('  #  include "outer.cuh"', [tmp_path]) != before


def test_digest_ignores_what_is_not_included_and_survives_circles(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_text('#include "b.cuh"\n')
    (tmp_path / "b.cuh").write_text('#include "a.cuh"\n#include <cuda_bf16.h>\n')
    before = digest_of_includes('#include "a.cuh"', [tmp_path])
    (tmp_path / "c.cuh").write_text("new")
    assert digest_of_includes('#include "a.cuh"', [tmp_path]) == before
