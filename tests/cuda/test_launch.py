"""Launching with a driver that records: what reaches it, how often, and what is said when it refuses."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pkb.cuda import LaunchError, Module
from pkb.cuda import module as module_under_test
from pkb.cuda.driver import cuda_driver
from pkb.records.errors import UsageError

pytest.importorskip("cuda.bindings.driver")


class FakeDriver:
    """Structures and enums of the real bindings, calls that only record."""

    def __init__(self) -> None:
        real = cuda_driver()
        for name in ("CUlaunchConfig", "CUlaunchAttribute", "CUlaunchAttributeID", "CUstream", "CUfunction"):
            setattr(self, name, getattr(real, name))
        self.CUfunction_attribute = real.CUfunction_attribute
        self.loaded: list[bytes] = []
        self.launches: list[Any] = []
        self.shared_asked: list[int] = []
        self.status = 0

    def cuLibraryLoadData(self, cubin: bytes, *_: Any) -> tuple[int, str]:
        self.loaded.append(cubin)
        return 0, "library"

    def cuLibraryGetKernel(self, library: str, symbol: bytes) -> tuple[int, int]:
        return (0, 4096) if symbol == b"symbol" else (500, 0)

    def cuKernelGetParamInfo(self, kernel: int, index: int) -> tuple[int, int, int]:
        return [(0, 0, 8), (0, 8, 4)][index] if index < 2 else (1, 0, 0)

    def cuKernelSetAttribute(self, attribute: Any, value: int, kernel: int, device: int) -> tuple[int]:
        self.shared_asked.append(value)
        return (0,)

    def cuLaunchKernelEx(self, config: Any, function: Any, parameters: int, extra: int) -> tuple[int]:
        self.launches.append((config, int(function), parameters))
        return (self.status,)

    def cuGetErrorName(self, status: int) -> tuple[int, bytes]:
        return 0, b"CUDA_ERROR_SOMETHING"

    def cuGetErrorString(self, status: int) -> tuple[int, bytes]:
        return 0, b"something is off"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setattr(module_under_test, "cuda_driver", lambda: fake)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=77, device_index=0))
    return fake


@pytest.fixture
def module() -> Module:
    return Module(name="kernel.cu", arch="sm_90a", cubin=b"cubin", symbols={"k<float>": "symbol", "gone": "other"})


def test_nothing_is_loaded_before_the_first_launch(driver: FakeDriver, module: Module) -> None:
    kernel = module.kernel("k<float>")
    assert driver.loaded == []
    for _ in range(3):
        kernel.launch(1, 0.5, grid=1, block=1)
    assert driver.loaded == [b"cubin"]
    assert len(driver.launches) == 3


def test_shape_and_stream_reach_the_driver(driver: FakeDriver, module: Module) -> None:
    module.kernel("k<float>").launch(1, 0.5, grid=(4, 3), block=128, shared_bytes=512)
    config, function, _ = driver.launches[0]
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (4, 3, 1)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ) == (128, 1, 1)
    assert (config.sharedMemBytes, int(config.hStream), config.numAttrs, function) == (512, 77, 0, 4096)


def test_cooperative_and_cluster_become_attributes(driver: FakeDriver, module: Module) -> None:
    module.kernel("k<float>").launch(1, 0.5, grid=8, block=32, cooperative=True, cluster=(2, 1, 1))
    config = driver.launches[0][0]
    ids = [attribute.id.name for attribute in config.attrs]
    assert ids == ["CU_LAUNCH_ATTRIBUTE_COOPERATIVE", "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"]
    assert config.attrs[0].value.cooperative == 1
    assert config.attrs[1].value.clusterDim.x == 2


def test_configuration_is_made_once_for_the_same_shape(driver: FakeDriver, module: Module) -> None:
    kernel = module.kernel("k<float>")
    for grid in (1, 1, 2):
        kernel.launch(1, 0.5, grid=grid, block=1)
    first, second, third = (config for config, _, _ in driver.launches)
    assert first is second and third is not first


def test_shared_memory_above_48_kib_is_asked_for_once_and_never_lowered(driver: FakeDriver, module: Module) -> None:
    kernel = module.kernel("k<float>")
    for shared_bytes in (48 * 1024, 100_000, 60_000, 100_000, 120_000):
        kernel.launch(1, 0.5, grid=1, block=1, shared_bytes=shared_bytes)
    assert driver.shared_asked == [100_000, 120_000]


def test_misfit_is_found_before_the_driver_is_called(driver: FakeDriver, module: Module) -> None:
    with pytest.raises(TypeError, match=r"k<float> takes 2 arguments, got 3"):
        module.kernel("k<float>").launch(1, 0.5, np.int32(3), grid=1, block=1)
    assert driver.launches == []


def test_refused_launch_names_error_kernel_and_shape(driver: FakeDriver, module: Module) -> None:
    driver.status = 1
    with pytest.raises(LaunchError) as caught:
        module.kernel("k<float>").launch(1, 0.5, grid=0, block=1)
    assert "CUDA_ERROR_SOMETHING (something is off) when launching k<float> with grid=0, block=1" in str(caught.value)


def test_kernel_missing_in_the_cubin(driver: FakeDriver, module: Module) -> None:
    with pytest.raises(LaunchError, match="looking for other in"):
        module.kernel("gone").launch(grid=1, block=1)


def test_without_the_extra_launch_says_how_to_install(monkeypatch: pytest.MonkeyPatch, module: Module) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    cuda_driver.cache_clear()
    with pytest.raises(UsageError, match=r"parallelkernelbench\[cuda\]"):
        module.kernel("k<float>").launch(1, 0.5, grid=1, block=1)
