"""Log-probabilities of targets after a filter, in float64: answers, near misses and cost, in chunks or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import Expected
from pkb.problems._spec import Cost, Dtype, Size, dtype_bytes
from pkb.problems._vocab_filter import Filter, keep, log_normalizer, num_local, num_tokens, whole_rows, wrong_masks


def log_probs(inputs_of_all_ranks: list[tuple[Any, ...]]) -> list[Any]:
    """The same answer for every rank."""
    rows, target = whole_rows(inputs_of_all_ranks), inputs_of_all_ranks[0][1]
    kept = keep(rows, filter_of(inputs_of_all_ranks[0]))
    return _answer(_log_probs(rows, target, kept), inputs_of_all_ranks)


def filter_of(arguments: tuple[Any, ...]) -> Filter:
    """The filter that arguments (logits, target, group, top_k, top_p, ...) ask for."""
    return Filter.of(*(*arguments[3:5], None, None)[:2])


def wrong_log_probs(inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    """Answers of wrong filters, and wrong answers of the right one."""
    world_size = len(inputs_of_all_ranks)
    rows, target = whole_rows(inputs_of_all_ranks), inputs_of_all_ranks[0][1]
    which = filter_of(inputs_of_all_ranks[0])
    kept = keep(rows, which)
    right = _log_probs(rows, target, kept)
    wrong = {name: _log_probs(rows, target, mask) for name, mask in wrong_masks(rows, which, world_size)}
    picked = rows.double().gather(1, target.view(-1, 1)).squeeze(1)
    wrong["removed target not removed"] = picked - log_normalizer(rows, kept)
    wrong["removed target given a finite number"] = right.clamp_min(-1e4)
    wrong["normalized over all classes"] = right + log_normalizer(rows, kept) - log_normalizer(rows, kept | True)
    wrong["target one class off"] = _log_probs(rows, (target + 1) % rows.shape[1], kept)
    wrong["logit without the normalizer"] = right + log_normalizer(rows, kept)
    wrong["tokens turned by one"] = right.roll(1)
    if world_size > 1:
        wrong["tokens of another rank"] = right.view(world_size, -1).roll(1, dims=0).flatten()
        wrong["tokens dealt to ranks one by one"] = right.view(world_size, -1).t().flatten()
        local = rows.shape[1] // world_size
        wrong["target taken for a local id"] = _log_probs(rows, target % local, kept)
    for name, values in wrong.items():
        if _is_far(values, right):
            # Else the mistake happens to make no difference, or one like a rounding.
            yield name, _answer(values, inputs_of_all_ranks)
    if world_size > 1:
        yield (
            "own shard alone",
            [_own_shard(arguments, rank, world_size) for rank, arguments in enumerate(inputs_of_all_ranks)],
        )


def exchange_cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    """Least work, when every rank merges the candidates of a share of the tokens.

    With top-k it gets up to k values of each of its tokens from every peer; without, the maximum and two sums are
    enough where the cut is found by them, which is the least. Target logits go along, results go to everyone.
    """
    local, count = num_local(size, world_size), num_tokens(size, world_size)
    candidates = min(size["top_k"], local) * dtype_bytes(dtype) if size["top_k"] else 8
    share = count * (world_size - 1) / world_size
    return Cost(
        link_bytes=share * (candidates + dtype_bytes(dtype) + 4),
        hbm_bytes=count * (local * dtype_bytes(dtype) + 8 + 4),
        flops=float(count * local),
    )


def _log_probs(rows: torch.Tensor, target: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    index = target.view(-1, 1)
    values = rows.gather(1, index).double().squeeze(1) - log_normalizer(rows, kept)
    return values.masked_fill(~kept.gather(1, index).squeeze(1), -torch.inf)


def _answer(values: torch.Tensor, inputs_of_all_ranks: list[tuple[Any, ...]]) -> list[Any]:
    shape = inputs_of_all_ranks[0][1].shape
    return [Expected(values.view(shape), torch.float32)] * len(inputs_of_all_ranks)


def _own_shard(arguments: tuple[Any, ...], rank: int, world_size: int) -> Any:
    """What a rank makes of its own classes, with targets elsewhere taken for removed ones."""
    rows = arguments[0].flatten(0, 1)
    column = arguments[1] - rank * rows.shape[1]
    is_own = (column >= 0) & (column < rows.shape[1])
    values = _log_probs(rows, column.where(is_own, 0), keep(rows, filter_of(arguments)))
    return Expected(values.view(column.shape).masked_fill(~is_own, -torch.inf), torch.float32)


def _is_far(values: torch.Tensor, right: torch.Tensor) -> bool:
    is_finite = values.isfinite() & right.isfinite()
    difference = (values - right).where(is_finite, 0.0).abs()
    return bool((values.isfinite() != right.isfinite()).any() or (difference > 1e-3 * (1 + right.abs())).any())
