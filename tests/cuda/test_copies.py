"""Two-dimensional copies: what reaches the driver, and which sides are refused."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pkb.cuda import copies, copy_2d
from pkb.cuda.driver import cuda_driver

pytest.importorskip("cuda.bindings.driver")


class Matrix:
    """A float matrix on the GPU, as far as copy_2d looks at one."""

    is_cuda = True
    dtype = torch.float32
    device = torch.device("cuda", 0)

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.address, self.shape, self.strides = address, torch.Size(shape), strides

    def dim(self) -> int:
        return len(self.shape)

    def stride(self, dim: int | None = None) -> Any:
        return self.strides if dim is None else self.strides[dim]

    def numel(self) -> int:
        return self.shape.numel()

    def element_size(self) -> int:
        return 4

    def data_ptr(self) -> int:
        return self.address


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    real = cuda_driver()

    def record(job: Any, stream: int) -> tuple[int]:
        made.append((job, stream))
        return (0,)

    fake = SimpleNamespace(CUDA_MEMCPY2D=real.CUDA_MEMCPY2D, CUmemorytype=real.CUmemorytype, cuMemcpy2DAsync=record)
    monkeypatch.setattr(copies, "cuda_driver", lambda: fake)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=77))
    return made


def copy(destination: Matrix, source: Matrix) -> None:
    copy_2d(destination, source)  # type: ignore[arg-type]


def test_rows_pitches_and_stream_reach_the_driver(jobs: list[Any]) -> None:
    copy(Matrix(0x1000, (3, 5), (20, 1)), Matrix(0x2000, (3, 5), (5, 1)))
    ((job, stream),) = jobs
    assert (int(job.dstDevice), int(job.srcDevice), stream) == (0x1000, 0x2000, 77)
    assert (job.dstPitch, job.srcPitch, job.WidthInBytes, job.Height) == (80, 20, 20, 3)


def test_stride_of_a_single_row_means_nothing(jobs: list[Any]) -> None:
    copy(Matrix(0x1000, (1, 5), (0, 1)), Matrix(0x2000, (1, 5), (1, 1)))
    ((job, _),) = jobs
    assert (job.dstPitch, job.srcPitch, job.WidthInBytes, job.Height) == (20, 20, 20, 1)


def test_nothing_is_copied_where_nothing_is(jobs: list[Any]) -> None:
    copy(Matrix(0x1000, (0, 5), (5, 1)), Matrix(0x2000, (0, 5), (5, 1)))
    assert jobs == []


@pytest.mark.parametrize(
    ("shape", "strides"), [((3, 5), (1, 3)), ((3, 5), (0, 1)), ((3, 5), (4, 1)), ((15,), (1,)), ((3, 5), (10, 2))]
)
def test_rows_that_are_not_whole_are_refused(jobs: list[Any], shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="destination has shape"):
        copy(Matrix(0x1000, shape, strides), Matrix(0x2000, (3, 5), (5, 1)))
    assert jobs == []


def test_shapes_must_agree(jobs: list[Any]) -> None:
    with pytest.raises(ValueError, match="both must agree"):
        copy(Matrix(0x1000, (3, 4), (5, 1)), Matrix(0x2000, (3, 5), (5, 1)))


def test_cpu_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="on cpu"):
        copy_2d(torch.zeros(2, 3), torch.zeros(2, 3))
