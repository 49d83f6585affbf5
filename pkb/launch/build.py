"""Torch extensions for the ranks: built once for all of them, in folders that a killed builder cannot block."""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from pkb.cuda import CompileError
from pkb.cuda.cache import cache_dir, locked, write_atomic
from pkb.cuda.headers import digest_of_includes
from pkb.records.errors import HarnessError

_TORCH_LOCK = "lock"
_BUILT_MARK = "built"
_ARCHES_WITHOUT_GPU = "9.0a"
# What load_inline puts before a CUDA source, so that solutions may count on it.
_IMPLICIT_HEADERS = "".join(f"#include <{name}>\n" for name in ("torch/types.h", "cuda.h", "cuda_runtime.h"))

# File descriptors, open and locked until this process ends: its ranks may be building in the folder.
_in_use: dict[Path, int] = {}


def compile_cuda_extension(
    name: str,
    cuda_src: str,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
) -> Any:
    """Build a torch extension from one CUDA source and import it.

    Built once for all processes that ask for the same, in a folder keyed by all that affects the result; the
    others wait and import what is there.

    Args:
        name: module name, `TORCH_EXTENSION_NAME` in the source.
        cuda_src: the whole source, its PYBIND11_MODULE included.
        extra_cuda_cflags: further flags for nvcc; -O3 is given.
        extra_include_paths: further folders with headers.
        extra_ldflags: further flags for the linker.

    Raises:
        CompileError: the source does not compile or link; holds all that the compilers wrote.
        HarnessError: there is no CUDA compiler here.
    """
    flags = ["-O3", *(extra_cuda_cflags or ())]
    includes, links = list(extra_include_paths or ()), list(extra_ldflags or ())
    arches = _arches()
    folder = cache_dir("extensions", f"{name}-{_key(name, cuda_src, flags, includes, links, arches)[:32]}")
    module = _import_built(name, folder)
    if module is not None:
        return module
    with locked(folder / "pkb.lock"):
        # Another process may have built it while this one waited.
        module = _import_built(name, folder)
        if module is not None:
            return module
        # Nobody builds here without our lock, so torch's own one was left by a killed builder.
        (folder / _TORCH_LOCK).unlink(missing_ok=True)
        # One of an unfinished or damaged build would be taken for up to date.
        for library in folder.glob("*.so"):
            library.unlink()
        with _environment("TORCH_CUDA_ARCH_LIST", arches):
            module = _build(name, cuda_src, flags, includes, links, folder)
        assert module.__file__ is not None, "an extension is a file"
        write_atomic(folder / _BUILT_MARK, Path(module.__file__).name.encode())
        return module


def solution_cache(solution_sha256: str) -> Path:
    """The folder for all that a solution compiles: one for each, so that none can replace or read another's."""
    return cache_dir("solutions", solution_sha256[:32])


def extensions_dir(solution_sha256: str) -> Path:
    """The folder for `TORCH_EXTENSIONS_DIR` of a solution that calls torch's `load_inline` itself.

    torch guards a build by a file that stays behind when the builder is killed and then blocks everybody. Such
    files are removed here, unless another living process has asked for the folder. So ask before ranks load the
    solution, not while ranks of this process are building in it.
    """
    folder = cache_dir("extensions", f"solution-{solution_sha256[:32]}")
    if folder not in _in_use:
        _in_use[folder] = os.open(folder / "pkb.users", os.O_CREAT | os.O_RDWR)
    users = _in_use[folder]
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # another process shares it: a lock of torch's may be that one's
        pass
    else:
        for left in folder.glob(f"*/{_TORCH_LOCK}"):
            left.unlink(missing_ok=True)
    fcntl.flock(users, fcntl.LOCK_SH)
    return folder


def install_public_helpers() -> None:
    """Let `from utils.cuda_helpers import compile_cuda_extension` of existing solution files find the above."""
    helpers = ModuleType("utils.cuda_helpers", "Builder of CUDA extensions, by the name that solution files use.")
    helpers.compile_cuda_extension = compile_cuda_extension  # type: ignore[attr-defined]
    package = ModuleType("utils", "Home of cuda_helpers.")
    package.__path__ = []
    package.cuda_helpers = helpers  # type: ignore[attr-defined]
    sys.modules["utils"] = package
    sys.modules["utils.cuda_helpers"] = helpers


def _arches() -> str:
    given = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if given:
        return given
    if not torch.cuda.is_available():
        return _ARCHES_WITHOUT_GPU
    major, minor = torch.cuda.get_device_capability()
    # Only the `a` targets of Hopper and Blackwell have their asynchronous tensor-core instructions.
    return f"{major}.{minor}{'a' if (major, minor) in ((9, 0), (10, 0)) else ''}"


def _torch_builder() -> ModuleType:
    """torch.utils.cpp_extension, imported when something is built.

    Its import starts the CUDA driver and a thread of it; this module is loaded before ranks are forked, and a
    fork can use neither.
    """
    return importlib.import_module("torch.utils.cpp_extension")


def _key(name: str, source: str, flags: list[str], includes: list[str], links: list[str], arches: str) -> str:
    facts = [
        name,
        source,
        flags,
        includes,
        links,
        arches,
        digest_of_includes(source, [Path(folder) for folder in includes]),
        [str(torch.__version__), torch.version.cuda, _torch_builder().CUDA_HOME, sys.implementation.cache_tag],
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _build(name: str, source: str, flags: list[str], includes: list[str], links: list[str], folder: Path) -> ModuleType:
    builder = _torch_builder()
    if builder.CUDA_HOME is None:
        raise HarnessError(
            f"{name} is built with load_inline, which needs nvcc, and torch found no CUDA toolkit here. Set"
            " CUDA_HOME, or write the solution for pkb.cuda.compile, which needs none."
        )
    try:
        module: ModuleType = builder.load_inline(
            name=name,
            cpp_sources="",
            cuda_sources=f'{_IMPLICIT_HEADERS}#line 1 "{name}.cu"\n{source}',
            extra_cuda_cflags=flags,
            extra_include_paths=includes,
            extra_ldflags=links,
            build_directory=str(folder),
            with_cuda=True,
            # Else the empty C++ source would include torch's headers too, for half a minute of compiling nothing.
            no_implicit_headers=True,
        )
    except (RuntimeError, ImportError) as error:  # the compilers' output, or a symbol that is missing at import
        raise CompileError(name, str(error)) from error
    return module


def _import_built(name: str, folder: Path) -> ModuleType | None:
    """The extension in a folder whose build was finished, else None."""
    try:
        library = folder / (folder / _BUILT_MARK).read_text()
    except FileNotFoundError:
        return None
    spec = importlib.util.spec_from_file_location(name, library)
    if spec is None or spec.loader is None:
        return None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:  # damaged or of another machine: build it again
        return None
    return module


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set a variable for a while: torch takes the architectures from nowhere else."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
