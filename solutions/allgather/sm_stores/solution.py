"""All-gather by peer stores of one kernel: quick to start, for tensors that are small or of a middle size."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import pkb.cuda
from pkb import symm

# By bytes: the widest type that divides a slice of the result decides how it is written.
UNITS = {16: "uint4", 8: "unsigned long long", 4: "unsigned int", 2: "unsigned short", 1: "unsigned char"}
MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"), kernels=[f"all_gather<{unit}>" for unit in UNITS.values()]
)
PACK_BYTES = 16
THREADS = 512
MAX_BLOCKS = 128
SIGNAL_BYTES = MAX_BLOCKS * 64


@dataclass(frozen=True)
class Buffer:
    """Symmetric memory for one shape and dtype, and how to launch on it."""

    memory: torch.Tensor
    peers: ctypes.Array[ctypes.c_uint64]
    kernel: pkb.cuda.Kernel
    num_units: int
    blocks: int
    rank: np.int32
    world_size: np.int32


_buffers: dict[tuple[torch.Size, torch.dtype, torch.device], Buffer] = {}


def solution(tensor: torch.Tensor) -> torch.Tensor:
    world_size = dist.get_world_size()
    source = _aligned(tensor)
    if world_size == 1 or tensor.numel() == 0:
        return source.expand(world_size, *tensor.shape).clone(memory_format=torch.contiguous_format)
    buffer = _buffer(tensor)
    out = tensor.new_empty((world_size, *tensor.shape))
    buffer.kernel.launch(
        buffer.peers,
        source,
        out,
        buffer.num_units,
        buffer.rank,
        buffer.world_size,
        grid=buffer.blocks,
        block=THREADS,
    )
    return out


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where the kernel can read it, else a copy."""
    source = tensor.contiguous()
    return source if source.data_ptr() % PACK_BYTES == 0 else source.clone()


def _buffer(tensor: torch.Tensor) -> Buffer:
    key = (tensor.shape, tensor.dtype, tensor.device)
    if key not in _buffers:
        _buffers[key] = _make_buffer(tensor)
    return _buffers[key]


def _make_buffer(tensor: torch.Tensor) -> Buffer:
    world_size = dist.get_world_size()
    num_bytes = tensor.numel() * tensor.element_size()
    num_packs = -(-num_bytes // PACK_BYTES)
    memory = symm.empty(
        (SIGNAL_BYTES + 2 * world_size * num_packs * PACK_BYTES,), dtype=torch.uint8, device=tensor.device
    )
    memory[:SIGNAL_BYTES].zero_()
    handle = symm.rendezvous(memory)
    # No rank may be signaled before it has zeroed its signals.
    handle.barrier()
    unit_bytes = next(width for width in UNITS if num_bytes % width == 0)
    num_sms = torch.cuda.get_device_properties(tensor.device).multi_processor_count
    return Buffer(
        memory=memory,
        peers=pkb.cuda.peers(handle.ptrs),
        kernel=MODULE.kernel(f"all_gather<{UNITS[unit_bytes]}>"),
        num_units=num_bytes // unit_bytes,
        blocks=min(MAX_BLOCKS, num_sms, -(-num_packs // THREADS)),
        rank=np.int32(handle.rank),
        world_size=np.int32(world_size),
    )
