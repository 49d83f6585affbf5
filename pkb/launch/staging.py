"""CUDA tensors on gloo, which ranks that share one GPU have to use because NCCL refuses them.

Two faults of gloo (torch 2.11) are kept from the references and from solutions that call the library: sending and
receiving a CUDA tensor aborts the process, so they travel through host memory; and the host memory behind a collective
is handed to the next one before the copies out of it are done, so that results hold the next call's data, which is why
collectives end with a wait. Times mean nothing on a shared GPU, so copies and waits do no harm.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

_POINT_TO_POINT = ("isend", "irecv", "send", "recv")
_COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all_single",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
)

Operation = Callable[..., Any]


def stage_point_to_point(needs_staging: Callable[[torch.Tensor], bool] = lambda tensor: tensor.is_cuda) -> None:
    """From now on, in this process, tensors that need it are sent and received through host memory.

    `batch_isend_irecv` is served as well: it calls the operations by their names in the same module.
    """
    _replace(_POINT_TO_POINT, lambda operation: _staged(operation, needs_staging))


def finish_collectives(wait: Callable[[], None] = lambda: torch.cuda.current_stream().synchronize()) -> None:
    """From now on, in this process, the host waits after each collective until its result is there."""
    _replace(_COLLECTIVES, lambda operation: _finished(operation, wait))


def _replace(names: tuple[str, ...], change: Callable[[Operation], Operation]) -> None:
    for name in names:
        changed = change(getattr(c10d, name))
        for module in (c10d, dist):
            setattr(module, name, changed)


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


def _finished(operation: Operation, wait: Callable[[], None]) -> Operation:
    @functools.wraps(operation)
    def call(*arguments: Any, **options: Any) -> Any:
        work = operation(*arguments, **options)
        if work is not None:
            return _Work(work, wait)
        wait()
        return None

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
