"""NVRTC through its bindings: one source to one cubin, with everything the compiler wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pkb.cuda.errors import CompileError
from pkb.cuda.headers import has_toolkit_headers
from pkb.records.errors import UsageError


@dataclass(frozen=True)
class Compiled:
    """What NVRTC made of a source."""

    cubin: bytes
    symbols: dict[str, str]
    """Symbol in the cubin by C++ name, for the kernels that were asked for."""
    log: str
    """Warnings and the assembler's remarks."""


def nvrtc_version() -> tuple[int, int]:
    """Version of the library at hand.

    Raises:
        UsageError: the extra `cuda` is not installed.
    """
    nvrtc = _nvrtc()
    status, major, minor = nvrtc.nvrtcVersion()
    _check(nvrtc, status)
    return major, minor


def compile_to_cubin(text: str, name: str, kernels: Sequence[str], options: Sequence[str]) -> Compiled:
    """Compile one source.

    Args:
        text: the source.
        name: its name in messages.
        kernels: C++ names of the kernels whose symbols are wanted; templates among them get instantiated.
        options: the command line.

    Raises:
        CompileError: the source does not compile.
        UsageError: the extra `cuda` is not installed.
    """
    nvrtc = _nvrtc()
    # The bindings themselves rather than cuda.core's Program: options reach NVRTC as written, and messages bear
    # the given name instead of a temporary file's.
    status, program = nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), 0, [], [])
    _check(nvrtc, status)
    try:
        for kernel in kernels:
            _check(nvrtc, nvrtc.nvrtcAddNameExpression(program, kernel.encode())[0])
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = _log(nvrtc, program)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(name, _explained(log, status))
        symbols = {kernel: _symbol(nvrtc, program, kernel) for kernel in kernels}
        return Compiled(cubin=_cubin(nvrtc, program), symbols=symbols, log=log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()  # loads the library itself: a wheel of its own
    except (ImportError, RuntimeError) as error:
        raise UsageError(
            f"pkb.cuda.compile needs NVRTC and its bindings ({error}). "
            "Install them: pip install 'parallelkernelbench[cuda]'"
        ) from error
    return nvrtc


def _explained(log: str, status: Any) -> str:
    """The log, with what is needed to act on it where the compiler itself says too little."""
    if not log:
        return f"error: {status.name} without a log"
    if not has_toolkit_headers():
        return f"{log}\nerror: CUDA's headers were not found. Install them: pip install 'parallelkernelbench[cuda]'"
    return log


def _log(nvrtc: Any, program: Any) -> str:
    status, size = nvrtc.nvrtcGetProgramLogSize(program)
    _check(nvrtc, status)
    # One byte more: Python shares its one-byte strings, and an empty log would be written into the shared one.
    buffer = bytes(size + 1)
    _check(nvrtc, nvrtc.nvrtcGetProgramLog(program, buffer)[0])
    return buffer.rstrip(b"\0").decode(errors="replace").strip()


def _symbol(nvrtc: Any, program: Any, kernel: str) -> str:
    status, symbol = nvrtc.nvrtcGetLoweredName(program, kernel.encode())
    _check(nvrtc, status)
    return bytes(symbol).decode()


def _cubin(nvrtc: Any, program: Any) -> bytes:
    status, size = nvrtc.nvrtcGetCUBINSize(program)
    _check(nvrtc, status)
    buffer = bytes(size)
    _check(nvrtc, nvrtc.nvrtcGetCUBIN(program, buffer)[0])
    return buffer


def _check(nvrtc: Any, status: Any) -> None:
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError("NVRTC", f"error: {status.name}")
