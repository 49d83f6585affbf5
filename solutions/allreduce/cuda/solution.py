"""All-reduce by peer stores: in one shot where the barrier is what takes the time, in two where the link is."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import pkb.cuda
from pkb import symm
from pkb.cuda import C_TYPES

MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"),
    kernels=[f"{kernel}<{c_type}>" for kernel in ("one_shot", "two_shot") for c_type in C_TYPES.values()],
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
    blocks: int
    rank: np.int32
    world_size: np.int32


_buffers: dict[tuple[torch.Size, torch.dtype, torch.device], Buffer] = {}


def solution(tensor: torch.Tensor) -> torch.Tensor:
    if dist.get_world_size() == 1 or tensor.numel() == 0:
        return tensor.clone()
    buffer = _buffer(tensor)
    source = _aligned(tensor)
    out = torch.empty_like(source)
    buffer.kernel.launch(
        buffer.peers,
        source,
        out,
        source.numel(),
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
    if tensor.dtype not in C_TYPES:
        raise ValueError(f"allreduce: dtype is {tensor.dtype}, must be one of {sorted(map(str, C_TYPES))}")
    num_packs = -(-tensor.numel() * tensor.element_size() // PACK_BYTES)
    slice_packs = -(-num_packs // world_size)
    in_one_shot = num_packs * PACK_BYTES <= _one_shot_bytes(world_size)
    # One shot: two halves of a slot a rank. Two shots: a slot of a slice a rank, and the sums of one slice.
    packs = 2 * world_size * num_packs if in_one_shot else (world_size + 1) * slice_packs
    memory = symm.empty((SIGNAL_BYTES + packs * PACK_BYTES,), dtype=torch.uint8, device=tensor.device)
    memory[:SIGNAL_BYTES].zero_()
    handle = symm.rendezvous(memory)
    # No rank may be signaled before it has zeroed its signals.
    handle.barrier()
    num_sms = torch.cuda.get_device_properties(tensor.device).multi_processor_count
    work = num_packs if in_one_shot else slice_packs
    kernel = "one_shot" if in_one_shot else "two_shot"
    return Buffer(
        memory=memory,
        peers=pkb.cuda.peers(handle.ptrs),
        kernel=MODULE.kernel(f"{kernel}<{C_TYPES[tensor.dtype]}>"),
        blocks=min(MAX_BLOCKS, num_sms, -(-work // THREADS)),
        rank=np.int32(handle.rank),
        world_size=np.int32(world_size),
    )


def _one_shot_bytes(world_size: int) -> int:
    """The largest tensor for which a second barrier costs more than the link bytes it saves.

    One shot moves (W-1) n bytes, two move 2 n (W-1)/W: the same for two ranks, where only the adding of the whole
    tensor on every rank speaks for two shots.
    """
    return 4 * 1024 * 1024 if world_size == 2 else 1024 * 1024 // world_size
