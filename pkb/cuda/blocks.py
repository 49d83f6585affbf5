"""Launching the kernels that move blocks of tensors between ranks (blocks.cuh)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
import torch.distributed as dist

from pkb.cuda.module import Module
from pkb.cuda.workspace import EXCHANGE_THREADS, Workspaces, aligned, grid_blocks, unit_of

# Places within a block are computed in 32 bits.
_MAX_BLOCK_UNITS = 2**31


class Side(NamedTuple):
    """How the blocks lie in a tensor, in elements: rows of `run`, `stride` apart, rank r's `step` r into the first."""

    run: int
    stride: int
    step: int

    @staticmethod
    def cut(part_shape: Sequence[int], dim: int, world_size: int) -> Side:
        """`world_size` parts of this shape side by side along `dim` in a contiguous tensor."""
        run = prod(part_shape[dim:])
        return Side(run=run, stride=world_size * run, step=run)

    def layout(self, element_bytes: int, unit_bytes: int) -> ctypes.Array[ctypes.c_int64]:
        """The argument for a `Layout` parameter (blocks.cuh), in units that divide all three."""
        return (ctypes.c_int64 * 3)(*(count * element_bytes // unit_bytes for count in self))


class BlockMover:
    """A solution's kernel `NAME<Unit>(peers, in, out, block_units, source, target, rank, world_size)` and its buffers.

    The kernel does what `move_blocks` of blocks.cuh does.
    """

    def __init__(self, module: Module, kernel: str) -> None:
        self._module = module
        self._kernel = kernel
        self._workspaces = Workspaces()

    def move(
        self,
        tensor: torch.Tensor,
        out: torch.Tensor,
        sides: tuple[Side, Side],
        block_elems: int,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """Send block d of `tensor` to rank d, for all d, and put the block from rank s into place s of `out`.

        Args:
            tensor: on the GPU, of any dtype; strided tensors are copied first.
            out: contiguous, of the same dtype, begins on a 16-byte boundary.
            sides: how blocks lie in `tensor` and in `out`.
            block_elems: elements of a block, equal for all pairs of ranks.
            group: the ranks that take part; None stands for the default group.

        Raises:
            ValueError: a block is too large for 32-bit places.
        """
        if block_elems == 0:
            return
        source, size = aligned(tensor), tensor.element_size()
        num_bytes = [count * size for side in sides for count in side]
        unit_bytes, c_type = unit_of([block_elems * size, *num_bytes])
        block_units = block_elems * size // unit_bytes
        if block_units >= _MAX_BLOCK_UNITS:
            raise ValueError(f"a block has {block_units} units of {unit_bytes} bytes, must have fewer than 2^31")
        world_size = dist.get_world_size(group)
        # The order of the slots depends on nothing but the size of a block, so equal sizes may share a buffer.
        key = (block_units, unit_bytes)
        space = self._workspaces.get(key, 2 * world_size * block_elems * size, tensor.device, group)
        self._module.kernel(f"{self._kernel}<{c_type}>").launch(
            space.peers,
            source,
            out,
            block_units,
            *(side.layout(size, unit_bytes) for side in sides),
            space.rank,
            space.world_size,
            grid=grid_blocks(block_units, tensor.device),
            block=EXCHANGE_THREADS,
        )
