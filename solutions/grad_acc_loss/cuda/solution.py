"""Token-weighted loss over all ranks, forward and backward, in one kernel of one warp."""

from itertools import product
from pathlib import Path

import torch

import pkb.cuda
from pkb.cuda import C_TYPES

MODULE = pkb.cuda.compile(
    Path(__file__).with_name("kernel.cu"),
    kernels=[f"weigh<{loss}, {grad}>" for loss, grad in product(C_TYPES.values(), repeat=2)],
)
THREADS = 32
SLOT_BYTES = 4
WORKSPACES = pkb.cuda.Workspaces()


def solution(
    loss: torch.Tensor,
    local_valid_tokens: torch.Tensor,
    global_valid_tokens: torch.Tensor,
    grad_normalized_loss: torch.Tensor,
    grad_loss_sum: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    for name, given in (("loss", loss), ("grad_normalized_loss", grad_normalized_loss)):
        if given.dtype not in C_TYPES:
            raise ValueError(f"grad_acc_loss: {name} is {given.dtype}, must be one of {sorted(map(str, C_TYPES))}")
    for name, given in (("local_valid_tokens", local_valid_tokens), ("global_valid_tokens", global_valid_tokens)):
        if given.dtype != torch.int64:
            raise ValueError(f"grad_acc_loss: {name} is {given.dtype}, must be torch.int64")
    grad_dtype = grad_normalized_loss.dtype
    space = WORKSPACES.get("floats", 2 * pkb.cuda.MAX_RANKS * SLOT_BYTES, loss.device)
    normalized, loss_sum = loss.new_empty(()), loss.new_empty(())
    grad_loss = grad_normalized_loss.new_empty(())
    MODULE.kernel(f"weigh<{C_TYPES[loss.dtype]}, {C_TYPES[grad_dtype]}>").launch(
        space.peers,
        loss,
        local_valid_tokens,
        global_valid_tokens,
        grad_normalized_loss,
        0 if grad_loss_sum is None else grad_loss_sum.to(grad_dtype),
        normalized,
        loss_sum,
        grad_loss,
        space.rank,
        space.world_size,
        grid=1,
        block=THREADS,
    )
    return normalized, loss_sum, grad_loss
