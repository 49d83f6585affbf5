"""Launching kernels that exchange FP8 codes with one delayed scale a rank (fp8_exchange.cuh)."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

from pkb.cuda.arguments import C_TYPES
from pkb.cuda.module import Module
from pkb.cuda.workspace import EXCHANGE_THREADS, MAX_BLOCKS, PACK_BYTES, Workspaces, aligned, grid_blocks


class Fp8Exchange:
    """A solution's kernels `find_largest<T>` and `NAME<T>`, T of `C_TYPES`, and their buffers.

    The latter takes (peers, in, out, part_elems, largest, num_largest, history, new_history, history_elems, rank,
    world_size) and keeps codes and scales in `CodeSlots`, one slot of `part_elems` codes for each rank.
    """

    def __init__(self, module: Module, kernel: str) -> None:
        self._module = module
        self._kernel = kernel
        self._workspaces = Workspaces()

    def run(self, tensor: torch.Tensor, amax_history: torch.Tensor, out: torch.Tensor, part_elems: int) -> torch.Tensor:
        """Launch both kernels; returns the new history.

        Args:
            tensor: on the GPU; its maximum moves the history on.
            amax_history: of bfloat16.
            out: contiguous, of the tensor's dtype.
            part_elems: elements that go from one rank to another.

        Raises:
            ValueError: a dtype that the kernels do not handle.
        """
        dtype, num_elems = tensor.dtype, tensor.numel()
        if dtype not in C_TYPES or amax_history.dtype != torch.bfloat16:
            raise ValueError(
                f"{self._kernel}: dtypes are {dtype} and {amax_history.dtype}, must be one of"
                f" {sorted(map(str, C_TYPES))} and torch.bfloat16"
            )
        new_history = torch.empty_like(amax_history)
        pack_elems = PACK_BYTES // dtype.itemsize
        part_packs = -(-part_elems // pack_elems)
        num_bytes = 2 * dist.get_world_size() * (4 * MAX_BLOCKS + part_packs * pack_elems)
        space = self._workspaces.get((num_elems, dtype), num_bytes, out.device)
        source = aligned(tensor)
        # A grid of its own: its blocks wait for nobody, and every rank reads as many maxima as it has written.
        num_largest = 4 * grid_blocks(num_elems // pack_elems, out.device)
        largest = torch.empty(num_largest, dtype=torch.float32, device=out.device)
        self._module.kernel(f"find_largest<{C_TYPES[dtype]}>").launch(
            source, num_elems, largest, grid=num_largest, block=EXCHANGE_THREADS
        )
        self._module.kernel(f"{self._kernel}<{C_TYPES[dtype]}>").launch(
            space.peers,
            source,
            out,
            part_elems,
            largest,
            np.int32(num_largest),
            amax_history.contiguous(),
            new_history,
            np.int32(amax_history.numel()),
            space.rank,
            space.world_size,
            grid=grid_blocks(part_packs, out.device),
            block=EXCHANGE_THREADS,
        )
        return new_history
