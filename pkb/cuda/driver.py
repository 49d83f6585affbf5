"""The CUDA driver through its bindings: imported when first needed, errors turned into messages."""

from __future__ import annotations

from functools import cache
from typing import Any

from pkb.cuda.errors import LaunchError
from pkb.records.errors import UsageError


@cache
def cuda_driver() -> Any:
    """The module `cuda.bindings.driver`.

    Raises:
        UsageError: the extra `cuda` is not installed.
    """
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise UsageError(
            f"Launching a kernel needs the CUDA driver's bindings ({error}). "
            "Install them: pip install 'parallelkernelbench[cuda]'"
        ) from error
    return driver


def check(driver: Any, status: Any, action: str) -> None:
    """Raise a LaunchError that names the driver's error and what was tried, unless `status` is success."""
    if status:
        name = driver.cuGetErrorName(status)[1]
        text = driver.cuGetErrorString(status)[1]
        raise LaunchError(f"{_decoded(name)} ({_decoded(text)}) when {action}")


def _decoded(text: Any) -> str:
    return text.decode() if isinstance(text, bytes) else str(text)
