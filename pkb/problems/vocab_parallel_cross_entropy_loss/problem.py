"""Judge's side of vocab_parallel_cross_entropy_loss.

The published baseline works in the logits' dtype throughout and overwrites the logits by logits - max. Ours
leaves them alone, as the contract says: the difference is a new tensor in the logits' dtype, on which exp
then works in place, so it writes no more than the published one. What it keeps a token (target logit, sum of
exp) is float32, because that costs nothing; a float32 copy of the logits would double the memory traffic of
the baseline in bf16 and flatter every solution. The rounding of logits - max costs far less than the
tolerance.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import Bound, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# `vocab` counts the classes of all ranks, `vocab_per_rank` those of one.
PROBLEM = Problem(
    number=73,
    group="loss",
    parallelism="tp",
    origin="Megatron-LM vocab-parallel cross entropy",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"tokens": (2, 11), "vocab_per_rank": 13},
        "base": {"tokens": (8, 1024), "vocab": 512},
        "large": {"tokens": (1, 8192), "vocab": 131072},
    },
    check=relative(bf16=2e-2, fp32=1e-5, elements=Bound(rel=2e-2, floor=2e-2, dtypes=("bf16",))),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    tokens, num_local = size["tokens"], _num_local(size, draw.world_size)
    # Offsets that need the maximum taken off, and put maximum, mass and target on different ranks.
    offset = draw.shared_uniform(-75.0, 75.0, *tokens, 1) + draw.uniform(-6.0, 6.0, *tokens, 1)
    logits = (draw.normal(*tokens, num_local, scale=3.0) + offset).to(draw.dtype)
    target = draw.shared_integers(0, num_local * draw.world_size, *tokens)
    if draw.index % 3 == 0:
        return logits, target
    return logits, target, Group(parts=(tuple(range(draw.world_size)),)) if draw.index % 3 == 1 else None


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    whole = torch.cat([logits.double() for logits, *_ in inputs_of_all_ranks], dim=-1)
    target = inputs_of_all_ranks[0][1]
    return [whole.logsumexp(dim=-1) - _pick(whole, target)] * world_size


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # An all-reduce of three float32 a token by slices, or by a switch; logits, targets and losses pass once.
    num_tokens = size["tokens"][0] * size["tokens"][1]
    num_logits = num_tokens * _num_local(size, world_size)
    passes = min(2 * (world_size - 1) / world_size, 1 + 1 / world_size)
    return Cost(
        link_bytes=12 * num_tokens * passes,
        hbm_bytes=num_logits * dtype_bytes(dtype) + num_tokens * (8 + dtype_bytes(dtype)),
        flops=4 * num_logits,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size, target = len(expected), inputs_of_all_ranks[0][1]
    shards = [logits.double() for logits, *_ in inputs_of_all_ranks]
    whole = torch.cat(shards, dim=-1)
    num_local = shards[0].shape[-1]
    yield (
        "log of the sum without the target logit",
        [one + _pick(whole, target) - whole.amax(dim=-1) for one in expected],
    )
    yield (
        "target one class off",
        [whole.logsumexp(dim=-1) - _pick(whole, (target + 1) % whole.shape[-1])] * world_size,
    )
    if world_size == 1:
        return
    top = torch.stack([shard.amax(dim=-1) for shard in shards])
    mixed = (whole.logsumexp(dim=-1) - top.amax(dim=0)) + top - _pick(whole, target)
    yield "own maximum put back in place of the maximum", list(mixed)
    sums = torch.stack([(shard - m.unsqueeze(-1)).exp().sum(dim=-1) for shard, m in zip(shards, top, strict=True)])
    unaligned = sums.sum(dim=0).log() + top.amax(dim=0) - _pick(whole, target)
    yield "sums of exp under different maxima added", [unaligned] * world_size
    yield "own classes only in the sum", [shard.logsumexp(dim=-1) - _pick(whole, target) for shard in shards]
    yield (
        "target looked up in the own shard",
        [whole.logsumexp(dim=-1) - _pick(shard, target % num_local) for shard in shards],
    )


def _pick(logits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return logits.take_along_dim(index.unsqueeze(-1), dim=-1).squeeze(-1)


def _num_local(size: Size, world_size: int) -> int:
    return int(size["vocab"] // world_size if "vocab" in size else size["vocab_per_rank"])
