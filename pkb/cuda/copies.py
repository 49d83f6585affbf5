"""Copies by the copy engine that torch has no call for."""

from __future__ import annotations

import torch

from pkb.cuda.driver import check, cuda_driver


def copy_2d(destination: torch.Tensor, source: torch.Tensor) -> None:
    """Copy a matrix whose rows may lie apart, by the copy engine, on torch's current stream.

    Either side may be a peer's memory. torch's own `copy_` does this with a kernel, which takes SMs from whatever
    is to run beside it.

    Args:
        destination: [rows, columns] on the GPU, each row contiguous; rows may be any distance apart.
        source: the same shape and dtype, laid out as freely.

    Raises:
        ValueError: a side is no such matrix, or the two differ in shape or dtype.
        LaunchError: the driver refused.
    """
    for name, side in (("destination", destination), ("source", source)):
        if not side.is_cuda or not _has_whole_rows(side):
            raise ValueError(
                f"copy_2d: {name} has shape {tuple(side.shape)} and strides {side.stride()} on {side.device};"
                " it must be a CUDA matrix whose rows are contiguous and do not overlap."
            )
    if destination.shape != source.shape or destination.dtype != source.dtype:
        raise ValueError(
            f"copy_2d: destination is {tuple(destination.shape)} {destination.dtype}, source is"
            f" {tuple(source.shape)} {source.dtype}; both must agree."
        )
    if source.numel() == 0:
        return
    driver = cuda_driver()
    row_bytes = source.shape[1] * source.element_size()
    job = driver.CUDA_MEMCPY2D()
    job.srcMemoryType = job.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_UNIFIED
    job.srcDevice = source.data_ptr()
    job.dstDevice = destination.data_ptr()
    # One row may carry any stride, and the driver wants a pitch of at least a row.
    job.srcPitch = max(source.stride(0) * source.element_size(), row_bytes)
    job.dstPitch = max(destination.stride(0) * destination.element_size(), row_bytes)
    job.WidthInBytes = row_bytes
    job.Height = source.shape[0]
    (status,) = driver.cuMemcpy2DAsync(job, torch.cuda.current_stream().cuda_stream)
    check(driver, status, f"copying {source.shape[0]} rows of {row_bytes} bytes")


def _has_whole_rows(side: torch.Tensor) -> bool:
    if side.dim() != 2:
        return False
    rows, columns = side.shape
    # The stride of a dimension of size one means nothing.
    return (columns <= 1 or side.stride(1) == 1) and (rows <= 1 or side.stride(0) >= columns)
