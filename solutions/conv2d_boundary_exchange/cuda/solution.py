"""Convolution of an image split by rows: one kernel exchanges halos while it lays out the slab, cuDNN does the rest."""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

import pkb.cuda

MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"), kernels=[f"extend<{unit}>" for unit in pkb.cuda.UNIT_TYPES]
)
THREADS = pkb.cuda.EXCHANGE_THREADS
MAX_UNITS = 2**31
WORKSPACES = pkb.cuda.Workspaces()


def solution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: int = 1,
    padding: int = 1,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    if padding == 0 or dist.get_world_size(group) == 1:
        return F.conv2d(x, weight, bias, stride, padding)
    return F.conv2d(_slab(x, padding, group), weight, bias, stride, (0, padding))


def _slab(x: torch.Tensor, padding: int, group: dist.ProcessGroup | None) -> torch.Tensor:
    batch, channels, height, width = x.shape
    if height < padding:
        raise ValueError(f"conv2d_boundary_exchange: {height} rows of x, must be at least the padding of {padding}")
    slab = x.new_empty((batch, channels, height + 2 * padding, width))
    row_bytes, num_planes = width * x.element_size(), batch * channels
    # The same on all ranks, whereas the height is a rank's own affair.
    halo_bytes = num_planes * padding * row_bytes
    if halo_bytes == 0:
        return slab
    unit_bytes, c_type = pkb.cuda.unit_of([row_bytes])
    if slab.nbytes // unit_bytes >= MAX_UNITS:
        raise ValueError(
            f"conv2d_boundary_exchange: the slab has {slab.nbytes} bytes, must have fewer than 2^31 units of"
            f" {unit_bytes}"
        )
    space = WORKSPACES.get((halo_bytes, unit_bytes), 2 * 2 * halo_bytes, x.device, group)
    MODULE.kernel(f"extend<{c_type}>").launch(
        space.peers,
        pkb.cuda.aligned(x),
        slab,
        num_planes,
        padding * row_bytes // unit_bytes,
        height * row_bytes // unit_bytes,
        space.rank,
        space.world_size,
        grid=pkb.cuda.grid_blocks(pkb.cuda.MAX_BLOCKS, x.device, items_per_block=1),
        block=THREADS,
    )
    return slab
