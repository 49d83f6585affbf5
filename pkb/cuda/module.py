"""A compiled module and its kernels: loaded onto the GPU when first launched, launched on torch's current stream."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from pkb.cuda.arguments import ParameterBlock
from pkb.cuda.driver import check, cuda_driver
from pkb.records.errors import UsageError

Dim = int | tuple[int, ...]

_SHARED_BYTES_WITHOUT_ASKING = 48 * 1024
# A launch whose shape changes with every call must not collect configurations for ever.
_MAX_CONFIGS = 256


class Module:
    """A cubin and the names of its kernels; making one touches no GPU."""

    def __init__(self, *, name: str, arch: str, cubin: bytes, symbols: Mapping[str, str]) -> None:
        self.name = name
        self.arch = arch
        self.cubin = cubin
        self._symbols = dict(symbols)
        self._kernels: dict[str, Kernel] = {}
        self._library: Any = None

    def __repr__(self) -> str:
        return f"Module({self.name!r}, {self.arch}, {len(self.cubin)} bytes, kernels={sorted(self._symbols)})"

    def kernel(self, name: str) -> Kernel:
        """A kernel by the C++ name given to `compile`, or by its symbol.

        Raises:
            UsageError: the module has no such kernel.
        """
        if name not in self._kernels:
            if name not in self._symbols:
                raise UsageError(
                    f"{self.name} has no kernel {name!r}; it has {sorted(self._symbols)}. Name it in"
                    ' compile(..., kernels=...) or declare it extern "C".'
                )
            self._kernels[name] = Kernel(self, name, self._symbols[name])
        return self._kernels[name]

    def library(self) -> Any:
        """The loaded library of the driver; loads it the first time."""
        if self._library is None:
            driver = cuda_driver()
            # A stream of 0 means the current context, which torch only sets once something needs it.
            torch.cuda.set_device(torch.cuda.current_device())
            status, library = driver.cuLibraryLoadData(self.cubin, [], [], 0, [], [], 0)
            check(driver, status, f"loading {self.name}, compiled for {self.arch}")
            self._library = library
        return self._library


class _Shape(NamedTuple):
    """What a launch configuration is made for."""

    grid: Dim
    block: Dim
    shared_bytes: int
    cooperative: bool
    cluster: Dim | None
    stream: int
    device: int


@dataclass
class _Loaded:
    """What a launch needs of a kernel on the GPU."""

    driver: Any
    kernel: Any
    function: Any
    parameters: ParameterBlock
    lock: threading.Lock = field(default_factory=threading.Lock)
    configs: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    shared_bytes_allowed: dict[int, int] = field(default_factory=dict)


class Kernel:
    """One kernel of a module."""

    def __init__(self, module: Module, name: str, symbol: str) -> None:
        self.name = name
        self._module = module
        self._symbol = symbol
        self._loaded: _Loaded | None = None

    def __repr__(self) -> str:
        return f"Kernel({self.name!r} of {self._module.name!r})"

    def launch(
        self,
        *args: Any,
        grid: Dim,
        block: Dim,
        shared_bytes: int = 0,
        cooperative: bool = False,
        cluster: Dim | None = None,
    ) -> None:
        """Launch on torch's current stream.

        Arguments, by parameter: a pointer takes a CUDA tensor, or an int that is an address; a 64-bit integer an
        int; `float` a float; `bool` a bool; any other width a NumPy scalar (`numpy.int32(3)`); a structure or an
        array by value a ctypes structure or array. Number and widths are checked against the kernel.

        Args:
            args: the kernel's arguments, in order.
            grid: blocks, along one to three dimensions.
            block: threads a block, along one to three dimensions.
            shared_bytes: dynamic shared memory a block; above 48 KiB it is asked for.
            cooperative: refuse unless all blocks are resident at once.
            cluster: blocks a cluster, along one to three dimensions.

        Raises:
            TypeError: the arguments do not fit the kernel's parameters.
            LaunchError: the driver refused.
        """
        loaded = self._loaded or self._load()
        stream = torch.cuda.current_stream()
        key = (grid, block, shared_bytes, cooperative, cluster, stream.cuda_stream, stream.device_index)
        # cuLaunchKernelEx of the bindings, with parameters and configuration made beforehand, rather than
        # cuda.core's launch(): that builds both anew for each launch, which costs more than the driver's own work.
        with loaded.lock:
            config = loaded.configs.get(key)
            if config is None:
                config = self._configure(loaded, _Shape(*key))
            loaded.parameters.pack(args)
            (status,) = loaded.driver.cuLaunchKernelEx(config, loaded.function, loaded.parameters.address, 0)
        if status:
            asked = f"grid={grid}, block={block}, shared_bytes={shared_bytes}, {cooperative=}, {cluster=}"
            check(loaded.driver, status, f"launching {self.name} with {asked}")

    def _load(self) -> _Loaded:
        driver = cuda_driver()
        status, kernel = driver.cuLibraryGetKernel(self._module.library(), self._symbol.encode())
        check(driver, status, f"looking for {self._symbol} in {self._module.name}")
        self._loaded = _Loaded(
            driver=driver,
            kernel=kernel,
            # The driver takes a kernel where its launch call asks for a function; the bindings want the type.
            function=driver.CUfunction(int(kernel)),
            parameters=ParameterBlock(self.name, _parameter_layout(driver, kernel)),
        )
        return self._loaded

    def _configure(self, loaded: _Loaded, shape: _Shape) -> Any:
        driver = loaded.driver
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = _three(shape.grid)
        config.blockDimX, config.blockDimY, config.blockDimZ = _three(shape.block)
        config.sharedMemBytes = shape.shared_bytes
        config.hStream = driver.CUstream(shape.stream)
        attributes = []
        if shape.cooperative:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            attributes.append(attribute)
        if shape.cluster is not None:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            size = attribute.value.clusterDim
            size.x, size.y, size.z = _three(shape.cluster)
            attributes.append(attribute)
        config.attrs = attributes
        config.numAttrs = len(attributes)
        if shape.shared_bytes > _SHARED_BYTES_WITHOUT_ASKING:
            self._allow_shared(loaded, shape.shared_bytes, shape.device)
        if len(loaded.configs) >= _MAX_CONFIGS:
            loaded.configs.clear()
        loaded.configs[shape] = config
        return config

    def _allow_shared(self, loaded: _Loaded, shared_bytes: int, device: int) -> None:
        # Raised only: configurations made for a larger amount stay in use.
        if shared_bytes <= loaded.shared_bytes_allowed.get(device, 0):
            return
        attribute = loaded.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (status,) = loaded.driver.cuKernelSetAttribute(attribute, shared_bytes, loaded.kernel, device)
        check(loaded.driver, status, f"allowing {self.name} {shared_bytes} bytes of shared memory a block")
        loaded.shared_bytes_allowed[device] = shared_bytes


def _parameter_layout(driver: Any, kernel: Any) -> list[tuple[int, int]]:
    """(offset, size) of each parameter, as the cubin has them."""
    layout: list[tuple[int, int]] = []
    while True:
        status, offset, size = driver.cuKernelGetParamInfo(kernel, len(layout))
        if status:  # past the last one
            return layout
        layout.append((offset, size))


def _three(dim: Dim) -> tuple[int, int, int]:
    given = (dim,) if isinstance(dim, int) else dim
    x, y, z = (*given, *(1 for _ in range(3 - len(given))))
    return x, y, z
