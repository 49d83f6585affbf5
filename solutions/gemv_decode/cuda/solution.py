"""Logits by cuBLAS, then one kernel that gathers them by peer stores."""

from pathlib import Path

import torch
import torch.distributed as dist

import pkb.cuda
from pkb.cuda import Side

MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"), kernels=[f"gather_logits<{unit}>" for unit in pkb.cuda.UNIT_TYPES]
)
THREADS = pkb.cuda.EXCHANGE_THREADS
MOVER = pkb.cuda.BlockMover(MODULE, "gather_logits")


def solution(hidden_states: torch.Tensor, weight_shard: torch.Tensor, bias_shard: torch.Tensor) -> torch.Tensor:
    world_size = dist.get_world_size()
    logits = torch.nn.functional.linear(hidden_states, weight_shard, bias_shard)
    if world_size == 1:
        return logits
    out = logits.new_empty((len(logits), world_size * logits.shape[1]))
    sent = Side(run=logits.numel(), stride=logits.numel(), step=0)
    MOVER.move(logits, out, (sent, Side.cut(logits.shape, 1, world_size)), logits.numel())
    return out
