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

_POINT_TO_POINT = ("isend", "irecv", "send", "recv")
Operation = Callable[..., Any]


def stage_point_to_point(needs_staging: Callable[[torch.Tensor], bool] = lambda tensor: tensor.is_cuda) -> None:
    """From now on, in this process, tensors that need it are sent and received through host memory.

    `batch_isend_irecv` is served as well: it calls the operations by their names in the same module.
    """
    for name in _POINT_TO_POINT:
        staged = _staged(getattr(c10d, name), needs_staging)
        for module in (c10d, dist):
            setattr(module, name, staged)


def _staged(operation: Operation, needs_staging: Callable[[torch.Tensor], bool]) -> Operation:
    receives, waits = "recv" in operation.__name__, not operation.__name__.startswith("i")

    @functools.wraps(operation)
    def call(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if not needs_staging(tensor):
            return operation(tensor, *arguments, **options)
        # The copy to the host waits for what the stream has yet to write.
        host = tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
        made = operation(host, *arguments, **options)
        arrive = functools.partial(tensor.copy_, host) if receives else _nothing
        if waits:
            arrive()
            return made
        return _Work(made, arrive)

    return call


class _Work:
    """A transfer under way, with something to do once it is done."""

    def __init__(self, work: Any, then: Callable[[], Any]) -> None:
        self._work = work
        self._then = then

    def wait(self, *arguments: Any) -> Any:
        """Wait until the transfer is done."""
        done = self._work.wait(*arguments)
        self._then()
        self._then = _nothing
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _nothing() -> None:
    pass
