"""CUDA C++ to a cubin through NVRTC, once for all processes of this machine; needs no GPU and no host compiler."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path

import torch

from pkb.cuda.cache import cache_dir, locked, write_atomic
from pkb.cuda.headers import (
    OWN_HEADERS,
    SHIM_HEADERS,
    digest_of_includes,
    toolkit_includes,
)
from pkb.cuda.module import Module
from pkb.cuda.nvrtc import compile_to_cubin, nvrtc_version
from pkb.records.errors import UsageError

_ARCH_WITHOUT_GPU = "sm_90a"
_FORMAT = "pkb-cubin-1"

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class KernelUse:
    """What one kernel takes of an SM, as the assembler reported it."""

    name: str
    """Name expression if it was asked for by one, else the symbol."""
    symbol: str
    """Name in the cubin."""
    registers: int
    """Registers a thread."""
    stack_bytes: int
    """Stack frame a thread."""
    spill_bytes: int
    """Spill stores plus spill loads a thread."""
    shared_bytes: int
    """Static shared memory a block."""


@dataclass(frozen=True)
class Build:
    """One source that this process compiled or took from the cache."""

    name: str
    """Name of the source in messages."""
    arch: str
    """Architecture of the cubin, such as sm_90a."""
    seconds: float
    """Time that the compiler took, also when that was in an earlier process."""
    cached: bool
    """Whether the cubin came from the cache."""
    kernels: tuple[KernelUse, ...]
    """Every kernel in the cubin."""
    log: str
    """All that the compiler wrote: warnings and the assembler's remarks."""


@dataclass(frozen=True)
class _Entry:
    """What a cache file holds."""

    build: Build
    symbols: dict[str, str]
    cubin: bytes


@dataclass(frozen=True)
class _Request:
    """All that decides what the compiler makes."""

    text: str
    name: str
    kernels: tuple[str, ...]
    options: tuple[str, ...]
    arch: str
    local_folders: tuple[Path, ...]

    def key(self) -> str:
        facts = [
            _FORMAT,
            self.text,
            self.name,
            self.arch,
            list(self.kernels),
            list(self.options),
            [str(folder) for folder in (*self.local_folders, *toolkit_includes())],
            list(nvrtc_version()),
            digest_of_includes(self.text, self.local_folders),
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


_builds: list[Build] = []


def builds() -> list[Build]:
    """The builds of this process, in order."""
    return list(_builds)


def compile(
    source: str | Path,
    *,
    name: str | None = None,
    kernels: Sequence[str] = (),
    arch: str | None = None,
    options: Sequence[str] = (),
    include_paths: Sequence[str | Path] = (),
) -> Module:
    """Compile CUDA device code to a cubin; works without a GPU, loads nothing onto one.

    `#include "signal.cuh"` and the other headers of `pkb/cuda` are found without further ado; so are files beside
    a source given as a path, and CUDA's own headers. Results are cached on disk by content, and of several
    processes that ask at the same time one compiles.

    Args:
        source: the code itself, or the `Path` of a file with it.
        name: name in messages; the file's name, or "kernel.cu".
        kernels: C++ names of the kernels to be launched, template arguments included
            (`"one_shot<__nv_bfloat16>"`); `extern "C"` kernels need not be listed.
        arch: such as "sm_90a"; default the GPU at hand, or sm_90a where there is none.
        options: further NVRTC options, such as "--use_fast_math" or "-DTILE=64".
        include_paths: further folders with headers.

    Raises:
        CompileError: the code does not compile; holds the compiler's whole log.
        UsageError: the extra `cuda` is not installed, or the file is not there.
    """
    text, beside, default_name = _read(source)
    request = _Request(
        text=text,
        name=name or default_name,
        kernels=tuple(kernels),
        options=tuple(options),
        arch=arch or _arch_at_hand(),
        local_folders=(*beside, OWN_HEADERS, SHIM_HEADERS, *(Path(p).absolute() for p in include_paths)),
    )
    entry = _cached_or_compiled(request)
    _builds.append(entry.build)
    names = {use.name: use.symbol for use in entry.build.kernels}
    return Module(name=request.name, arch=request.arch, cubin=entry.cubin, symbols={**names, **entry.symbols})


def _read(source: str | Path) -> tuple[str, tuple[Path, ...], str]:
    if isinstance(source, Path):
        if not source.is_file():
            raise UsageError(f"{source}: no such file. Give the path of a CUDA source file.")
        return source.read_text(encoding="utf-8"), (source.absolute().parent,), source.name
    if source.endswith((".cu", ".cuh")) and "\n" not in source:
        raise UsageError(f"{source!r} is a str, taken as the code itself. Give a file as Path({source!r}).")
    return source, (), "kernel.cu"


def _arch_at_hand() -> str:
    if not torch.cuda.is_available():
        return _ARCH_WITHOUT_GPU
    major, minor = torch.cuda.get_device_capability()
    # Only the `a` targets of Hopper and Blackwell have their asynchronous tensor-core instructions.
    suffix = "a" if (major, minor) in ((9, 0), (10, 0)) else ""
    return f"sm_{major}{minor}{suffix}"


def _cached_or_compiled(request: _Request) -> _Entry:
    key = request.key()
    folder = cache_dir("cubin")
    file = folder / f"{key}.cubin"
    entry = _load(file)
    if entry is not None:
        return entry
    with locked(folder / f"{key}.lock"):
        # Another process may have compiled it while this one waited for the lock.
        entry = _load(file)
        if entry is None:
            entry = _compile(request)
            write_atomic(file, _to_bytes(entry))
        return entry


def _to_bytes(entry: _Entry) -> bytes:
    head = {
        "format": _FORMAT,
        "sha256": hashlib.sha256(entry.cubin).hexdigest(),
        "build": asdict(entry.build),
        "symbols": entry.symbols,
    }
    return json.dumps(head).encode() + b"\n" + entry.cubin


def _load(file: Path) -> _Entry | None:
    """The entry in a cache file; None if there is none or it is damaged, so that it gets compiled (again)."""
    try:
        line, _, cubin = file.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    try:
        head = json.loads(line)
        if head["format"] != _FORMAT or head["sha256"] != hashlib.sha256(cubin).hexdigest():
            return None
        fields = head["build"]
        uses = tuple(KernelUse(**use) for use in fields.pop("kernels"))
        build = replace(Build(**fields, kernels=uses), cached=True)
        return _Entry(build=build, symbols=dict(head["symbols"]), cubin=cubin)
    except (ValueError, KeyError, TypeError):
        return None


def _compile(request: _Request) -> _Entry:
    options = [
        f"--gpu-architecture={request.arch}",
        "--std=c++17",
        "-lineinfo",
        "--ptxas-options=-v",
        # NVRTC's own cache gives the cubin without ptxas' report.
        "--no-cache",
        *(f"--include-path={folder}" for folder in (*request.local_folders, *toolkit_includes())),
        *request.options,
    ]
    started = time.monotonic()
    made = compile_to_cubin(request.text, request.name, request.kernels, options)
    build = Build(
        name=request.name,
        arch=request.arch,
        seconds=round(time.monotonic() - started, 4),
        cached=False,
        kernels=_uses(made.log, made.symbols),
        log=made.log,
    )
    return _Entry(build=build, symbols=made.symbols, cubin=made.cubin)


def _uses(log: str, symbols: dict[str, str]) -> tuple[KernelUse, ...]:
    names = {symbol: kernel for kernel, symbol in symbols.items()}
    uses = []
    starts = [*_ENTRY.finditer(log)]
    for start, following in zip_longest(starts, starts[1:]):
        part = log[start.end() : following.start() if following else len(log)]
        stack, used, shared = _STACK.search(part), _USED.search(part), _SHARED.search(part)
        uses.append(
            KernelUse(
                name=names.get(start[1], start[1]),
                symbol=start[1],
                registers=int(used[1]) if used else 0,
                stack_bytes=int(stack[1]) if stack else 0,
                spill_bytes=int(stack[2]) + int(stack[3]) if stack else 0,
                shared_bytes=int(shared[1]) if shared else 0,
            )
        )
    return tuple(uses)
