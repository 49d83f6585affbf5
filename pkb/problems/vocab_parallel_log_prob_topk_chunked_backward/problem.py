"""Judge's side of vocab_parallel_log_prob_topk_chunked_backward.

The contract filters and adds in float32 whatever the dtype of the logits, so rows need a margin of 1e-4 alone and the
tolerances are the same in both dtypes; they are smaller than TF32 needs, which nothing here could use. A token's error
is compared with its gradient and, where that cancels (the target alone was kept), with grad_output. `tiny` has fewer
tokens than the others, so that it costs less than `base` with 8 ranks too.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import Check, Expected, accepts, every, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes
from pkb.problems._vocab_filter import (
    Filter,
    chunk_size,
    keep,
    log_normalizer,
    logits_and_target,
    num_local,
    num_tokens,
    options,
    whole_rows,
    wrong_masks,
)

# `vocab` and `seq` count those of all ranks, `..._per_rank` a rank's part; `chunk` is given where it is no multiple
# of the number of ranks.
PROBLEM = Problem(
    number=84,
    group="loss",
    parallelism="tp (vocab)",
    origin="NeMo-RL, backward of the chunked filtered log-probability",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"batch": 2, "seq_per_rank": 1, "vocab_per_rank": 9, "top_k": 10, "top_p": 0.9},
        "tiny_both": {"batch": 2, "seq_per_rank": 3, "vocab_per_rank": 9, "top_k": 10, "top_p": 0.9},
        "tiny_top_p": {"batch": 2, "seq_per_rank": 3, "vocab_per_rank": 9, "top_k": None, "top_p": 0.8},
        "tiny_top_k": {"batch": 2, "seq_per_rank": 3, "vocab_per_rank": 9, "top_k": 5, "top_p": 1.0},
        "tiny_all": {"batch": 2, "seq_per_rank": 3, "vocab_per_rank": 9, "top_k": None, "top_p": 1.0},
        "tiny_many": {"batch": 2, "seq_per_rank": 3, "vocab_per_rank": 9, "top_k": 400, "top_p": 0.7},
        "base": {"batch": 2, "seq": 8, "vocab": 256, "top_k": 10, "top_p": 0.9},
        "large": {"batch": 1, "seq": 4096, "vocab": 131072, "top_k": 50, "top_p": 0.95, "chunk": 512},
    },
    check=relative(bf16=2e-4, fp32=2e-4),
)

TOKEN = 1e-3
"""Largest error of a token relative to the norm of its gradient, and to a hundredth of grad_output."""


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    logits, target = logits_and_target(size, draw)
    arguments = logits, target, draw.shared_normal(*target.shape), *options(size, draw)
    if "seq" not in size and draw.world_size <= 2 and draw.index % 3 == 0:
        # The default chunk has as many tokens as the batch.
        return arguments
    return *arguments, chunk_size(size, draw)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Any]:
    rows = whole_rows(inputs_of_all_ranks)
    kept = keep(rows, _filter(inputs_of_all_ranks))
    grads = _gradients(inputs_of_all_ranks, log_normalizer(rows, kept), kept, kept)
    parts = zip(grads, kept.chunk(world_size, dim=1), inputs_of_all_ranks, strict=True)
    return [Expected(grad, torch.float32, _check(grad, part, one[2])) for grad, part, one in parts]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Each rank merges the candidates of a share of the tokens: up to k values of each from every peer, or a maximum
    # and a sum without top-k; cut and normalizer of every token go back. Each rank writes its own columns.
    local, count = num_local(size, world_size), num_tokens(size, world_size)
    candidates = min(size["top_k"], local) * dtype_bytes(dtype) if size["top_k"] else 8
    return Cost(
        link_bytes=count * (world_size - 1) / world_size * (candidates + 8),
        hbm_bytes=count * (local * (dtype_bytes(dtype) + 4) + 8 + dtype_bytes(dtype)),
        flops=3.0 * count * local,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size, everyone = len(expected), inputs_of_all_ranks
    right = [one.value for one in expected]
    wrong = _wrong_gradients(everyone)
    wrong["other sign"] = [-grad for grad in right]
    wrong["tokens turned by one"] = [grad.flatten(0, 1).roll(1, dims=0).view_as(grad) for grad in right]
    if world_size > 1:
        wrong["columns of the next rank"] = right[1:] + right[:1]
        whole = torch.cat([grad.flatten(0, 1) for grad in right], dim=1)
        wrong["rows in place of columns"] = [part.reshape(right[0].shape) for part in whole.chunk(world_size)]
        wrong["own shard alone"] = [_own_shard(one, rank, _filter(everyone)) for rank, one in enumerate(everyone)]
    per_chunk = right[0].shape[0] * (everyone[0][6] if len(everyone[0]) > 6 else 1)
    tail = everyone[0][1].numel() % per_chunk
    if 0 < tail < everyone[0][1].numel():
        wrong["short last chunk left out"] = [_without_last(grad, tail) for grad in right]
    for name, grads in wrong.items():
        if any(bool((g - r).norm() > 0.01 * r.norm()) for g, r in zip(grads, right, strict=True)):
            # Else the mistake happens to make no difference, or next to none.
            checks = zip(grads, expected, strict=True)
            yield name, [Expected(grad, torch.float32, one.check) for grad, one in checks]


def _wrong_gradients(everyone: list[tuple[Any, ...]]) -> dict[str, list[torch.Tensor]]:
    """Gradients of wrong filters, and of the right one used in a wrong way."""
    rows, which = whole_rows(everyone), _filter(everyone)
    kept = keep(rows, which)
    everything, normalizer = torch.ones_like(kept), log_normalizer(rows, kept)
    wrong = {}
    for name, mask in wrong_masks(rows, which, len(everyone)):
        wrong[name] = _gradients(everyone, log_normalizer(rows, mask), mask, mask)
    wrong["probabilities alone"] = _gradients(everyone, normalizer, kept, ~everything)
    wrong["removed target gets its 1"] = _gradients(everyone, normalizer, kept, everything)
    wrong["removed logits get probabilities"] = _gradients(everyone, normalizer, everything, kept)
    wrong["normalized over all classes"] = _gradients(everyone, log_normalizer(rows, everything), kept, kept)
    is_kept = kept.gather(1, everyone[0][1].view(-1, 1))
    wrong["nothing where the target was removed"] = _gradients(everyone, normalizer, kept & is_kept, kept)
    plain = [(*one[:2], torch.ones_like(one[2])) for one in everyone]
    wrong["grad_output left out"] = _gradients(plain, normalizer, kept, kept)
    return wrong


def _gradients(
    everyone: list[tuple[Any, ...]], normalizer: torch.Tensor, has_probability: torch.Tensor, has_one: torch.Tensor
) -> list[torch.Tensor]:
    """Columns of each rank: grad_output times (1 at the target - probability), both only where the masks say so."""
    masks = (mask.chunk(len(everyone), dim=1) for mask in (has_probability, has_one))
    return [
        _columns(one, rank, normalizer, *pair) for rank, (one, *pair) in enumerate(zip(everyone, *masks, strict=True))
    ]


def _columns(
    arguments: tuple[Any, ...],
    rank: int,
    normalizer: torch.Tensor,
    has_probability: torch.Tensor,
    has_one: torch.Tensor,
) -> torch.Tensor:
    logits, target, grad_output = (tensor.view(arguments[1].numel(), -1) for tensor in arguments[:3])
    column = torch.arange(logits.shape[1], device=logits.device) + rank * logits.shape[1]
    grad: torch.Tensor = ((target == column) & has_one).double()
    grad -= (logits.double() - normalizer.unsqueeze(1)).exp().masked_fill(~has_probability, 0.0)
    grad *= grad_output.double()
    return grad.view(*arguments[0].shape)


def _own_shard(arguments: tuple[Any, ...], rank: int, which: Filter) -> torch.Tensor:
    """What a rank makes of its own classes."""
    rows = arguments[0].flatten(0, 1)
    kept = keep(rows, which)
    return _columns(arguments, rank, log_normalizer(rows, kept), kept, kept)


def _check(grad: torch.Tensor, kept: torch.Tensor, grad_output: torch.Tensor) -> Check:
    """By norm, by token, and exact zeros at what was removed."""
    allowed = TOKEN * (grad.norm(dim=-1) + grad_output.double().abs() / 100)
    is_removed = ~kept.view(grad.shape)

    def wrong(got: torch.Tensor) -> torch.Tensor:
        # Written so that a NaN is wrong.
        is_bad = ~((got.double() - grad).norm(dim=-1) <= allowed)
        return torch.logical_or(is_bad.unsqueeze(-1), is_removed & (got != 0))

    return every(PROBLEM.check, accepts(wrong))


def _without_last(grad: torch.Tensor, count: int) -> torch.Tensor:
    changed = grad.clone()
    changed.view(-1, grad.shape[-1])[-count:] = 0.0
    return changed


def _filter(everyone: list[tuple[Any, ...]]) -> Filter:
    return Filter.of(*everyone[0][4:6])
