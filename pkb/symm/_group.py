"""The process group of a rendezvous: who is in it, and exchanging small objects through it."""

from __future__ import annotations

from typing import TypeVar

import torch.distributed as dist

from pkb.records.errors import UsageError

_T = TypeVar("_T")


def require_member(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """The given group, or the default one for None.

    Raises:
        UsageError: torch.distributed is not initialized, or this rank is not in the group.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise UsageError(
            "rendezvous: torch.distributed has no process group."
            " Call torch.distributed.init_process_group(...) on every rank first."
        )
    chosen = dist.group.WORLD if group is None else group
    if not isinstance(chosen, dist.ProcessGroup) or dist.get_rank(chosen) < 0:
        raise UsageError(
            f"rendezvous: rank {dist.get_rank()} is not in the given group {group!r}."
            " Call it on the group's ranks only."
        )
    return chosen


def gather(value: _T, group: dist.ProcessGroup) -> list[_T]:
    """The values of all ranks, in rank order; also a barrier."""
    values: list[_T] = [value] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values
