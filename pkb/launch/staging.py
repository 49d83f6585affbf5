"""Point-to-point of CUDA tensors on gloo, which aborts the process: they travel through host memory.

Needed where ranks share one GPU, which NCCL refuses. Times mean nothing there, so copies and waits do no harm.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

_NAMES = ("isend", "irecv", "send", "recv")


def stage_point_to_point(needs_staging: Callable[[torch.Tensor], bool] = lambda tensor: tensor.is_cuda) -> None:
    """From now on, in this process, tensors that need it are sent and received through host memory.

    `batch_isend_irecv` is served as well: it calls the operations by their names in the same module.
    """
    for name in _NAMES:
        staged = _staged(getattr(c10d, name), needs_staging)
        for module in (c10d, dist):
            setattr(module, name, staged)


def _staged(operation: Callable[..., Any], needs_staging: Callable[[torch.Tensor], bool]) -> Callable[..., Any]:
    receives, waits = "recv" in operation.__name__, not operation.__name__.startswith("i")

    @functools.wraps(operation)
    def call(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if not needs_staging(tensor):
            return operation(tensor, *arguments, **options)
        # The copy to the host waits for what the stream has yet to write.
        host = tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
        made = operation(host, *arguments, **options)
        if waits:
            if receives:
                tensor.copy_(host)
            return made
        return _StagedWork(made, host, tensor if receives else None)

    return call


class _StagedWork:
    """A transfer under way; what it receives arrives at its place with `wait`."""

    def __init__(self, work: Any, host: torch.Tensor, target: torch.Tensor | None) -> None:
        self._work = work
        self._host = host
        self._target = target

    def wait(self, *arguments: Any) -> Any:
        """Wait until the transfer is done."""
        done = self._work.wait(*arguments)
        if self._target is not None:
            self._target.copy_(self._host)
            self._target = None
        return done

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        return bool(self._work.is_completed())
