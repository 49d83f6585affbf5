"""Gradient mean that moves FP8 codes: one kernel finds the maximum, one encodes, sends and adds."""

from pathlib import Path

import torch
import torch.distributed as dist

import pkb.cuda
from pkb.cuda import C_TYPES

MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"),
    kernels=[f"{kernel}<{c_type}>" for kernel in ("find_largest", "reduce_codes") for c_type in C_TYPES.values()],
)
THREADS = pkb.cuda.EXCHANGE_THREADS
EXCHANGE = pkb.cuda.Fp8Exchange(MODULE, "reduce_codes")


def solution(flat_grads: torch.Tensor, amax_history: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = flat_grads.new_empty(flat_grads.numel() // dist.get_world_size())
    return out, EXCHANGE.run(flat_grads, amax_history, out, out.numel())
