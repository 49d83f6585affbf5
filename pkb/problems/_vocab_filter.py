"""Rows of logits with targets around the cut of top-k and top-p, and the filter in float64.

Rows are drawn again where a running sum comes so near to the cut that rounding in float32 could move it, or where the
cut runs between equal logits: elsewhere there is one right answer. Sums in the precision of bf16 logits would need a
margin that rows of many classes cannot have, and the contract wants float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from pkb.problems._draw import Draw
from pkb.problems._spec import Group, Size

MARGIN = 1e-4
MAX_ROUNDS = 200
BLOCK_ELEMS = 2**25
"""So many logits are drawn or filtered at a time."""


@dataclass(frozen=True)
class Filter:
    """top_k (0: none) and top_p (1: none)."""

    top_k: int
    top_p: float

    @staticmethod
    def of(top_k: int | None, top_p: float | None) -> Filter:
        """From arguments of a call."""
        return Filter(top_k or 0, 1.0 if top_p is None else top_p)


def num_tokens(size: Size, world_size: int) -> int:
    """Tokens of all ranks."""
    return int(size["batch"]) * seq_length(size, world_size)


def seq_length(size: Size, world_size: int) -> int:
    """Tokens of a sequence."""
    return int(size["seq"] if "seq" in size else size["seq_per_rank"] * world_size)


def num_local(size: Size, world_size: int) -> int:
    """Classes of a rank."""
    return int(size["vocab"] // world_size if "vocab" in size else size["vocab_per_rank"])


def logits_and_target(size: Size, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's columns of the logits, and the targets."""
    local, count = num_local(size, draw.world_size), num_tokens(size, draw.world_size)
    vocab = local * draw.world_size
    which = Filter(min(size["top_k"] or 0, vocab), size["top_p"])
    logits = torch.empty(count, local, dtype=draw.dtype, device=draw.device)
    target = torch.empty(count, dtype=torch.int64, device=draw.device)
    for todo in torch.split(torch.arange(count, device=draw.device), max(1, BLOCK_ELEMS // vocab)):
        for _ in range(MAX_ROUNDS):
            rows = _rows(draw, len(todo), vocab, which.top_k)
            target[todo], is_clear = _targets(draw, rows, which)
            logits[todo] = rows[:, draw.rank * local : (draw.rank + 1) * local]
            todo = todo[~is_clear]
            if len(todo) == 0:
                break
        else:
            raise ValueError(f"after {MAX_ROUNDS} rounds {len(todo)} rows have no clear cut")
    shape = size["batch"], seq_length(size, draw.world_size)
    return logits.view(*shape, local), target.view(shape)


def options(size: Size, draw: Draw) -> tuple[Any, ...]:
    """tp_group, top_k and top_p, with None or 0 for no filter in some draws."""
    group = Group.whole(draw.world_size) if draw.index % 2 == 0 else None
    top_k = size["top_k"] or (None, 0)[draw.index // 2 % 2]
    return group, top_k, None if size["top_p"] == 1.0 and draw.index % 3 == 1 else size["top_p"]


def chunk_size(size: Size, draw: Draw) -> int:
    """The size's own chunk, or one, two or four times W: the last is longer than a sequence of three times W."""
    world_size = draw.world_size
    if "chunk" in size:
        return int(size["chunk"])
    if "seq" in size:
        length = int(size["seq"])
        return min(max(world_size, -(-(length // 4) // world_size) * world_size), length)
    factor: int = (1, 2, 4)[draw.index % 3]
    return world_size * factor


def whole_rows(inputs_of_all_ranks: list[tuple[Any, ...]]) -> torch.Tensor:
    """Logits of all ranks [B S, V], in their own dtype."""
    return torch.cat([arguments[0].flatten(0, 1) for arguments in inputs_of_all_ranks], dim=-1)


def keep(rows: torch.Tensor, which: Filter) -> torch.Tensor:
    """Which logits [n, V] stay, bool: those with less than top_p ranked above them among the best k."""
    masks = []
    for block in torch.split(rows, max(1, BLOCK_ELEMS // rows.shape[1])):
        ordered, order = block.double().sort(dim=-1, descending=True, stable=True)
        is_best = ordered >= ordered[:, min(which.top_k or rows.shape[1], rows.shape[1]) - 1, None]
        masks.append(_unsorted(order, is_best & _is_within(ordered, is_best, which.top_p)))
    return torch.cat(masks)


def log_normalizer(rows: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Log of the sum of exp of what is kept, float64 [n]."""
    parts = zip(*(torch.split(t, max(1, BLOCK_ELEMS // rows.shape[1])) for t in (rows, kept)), strict=True)
    return torch.cat([part.double().masked_fill(~mask, -torch.inf).logsumexp(dim=-1) for part, mask in parts])


def wrong_masks(rows: torch.Tensor, which: Filter, world_size: int) -> Iterator[tuple[str, torch.Tensor]]:
    """What frequent mistakes would keep."""
    vocab, k, top_p = rows.shape[1], which.top_k, which.top_p
    ordered, order = rows.double().sort(dim=-1, descending=True, stable=True)
    place = torch.arange(vocab, device=rows.device).expand_as(ordered)
    is_best = ordered >= ordered[:, min(k or vocab, vocab) - 1, None]
    yield "best token alone", _unsorted(order, place == 0)
    if k > 0:
        yield "top-k left out", keep(rows, Filter(0, top_p))
        first = place < k
        yield "logits equal to the k-th dropped", _unsorted(order, first & _is_within(ordered, first, top_p))
        yield "one too few of the best", keep(rows, Filter(max(1, min(k, vocab) - 1), top_p))
    if top_p < 1:
        yield "top-p left out", keep(rows, Filter(k, 1.0))
        mass = _masses(ordered, is_best)
        within = (mass.cumsum(dim=-1) < top_p) | (place == 0)
        yield "token at the cut removed", _unsorted(order, is_best & within)
        yield "top_p taken for what is cut off", keep(rows, Filter(k, 1 - top_p))
    if top_p < 1 and k > 0:
        everything = torch.ones_like(is_best)
        yield "top-p before top-k", _unsorted(order, is_best & _is_within(ordered, everything, top_p))
    if world_size > 1 and k > 0:
        shards = rows.double().view(len(rows), world_size, -1)
        for name, count in (
            ("best k of every shard", k),
            ("an equal share of k from every shard", -(-k // world_size)),
        ):
            lowest = shards.topk(min(count, shards.shape[-1]), dim=-1).values[..., -1:]
            best = (shards >= lowest).flatten(1).take_along_dim(order, dim=-1)
            yield name, _unsorted(order, best & _is_within(ordered, best, top_p))


def _masses(ordered: torch.Tensor, is_best: torch.Tensor) -> torch.Tensor:
    """Probabilities in float64 among the best, 0 for the others."""
    return ordered.masked_fill(~is_best, -torch.inf).softmax(dim=-1)


def _is_within(ordered: torch.Tensor, is_best: torch.Tensor, top_p: float) -> torch.Tensor:
    """In descending order: less than top_p lies above, or nothing at all."""
    if top_p >= 1:
        return torch.ones_like(is_best)
    above = _masses(ordered, is_best).cumsum(dim=-1).roll(1, dims=-1)
    above[:, 0] = -1.0
    return above < top_p


def _unsorted(order: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(mask).scatter_(-1, order, mask)


def _rows(draw: Draw, count: int, vocab: int, k: int) -> torch.Tensor:
    """Logits whose best are, in a third of the rows, all on one rank; in another third several equal the k-th."""
    rows = draw.shared_normal(count, vocab, scale=2.5)
    kind = draw.shared_uniform(0.0, 3.0, count, 1)
    owner = draw.shared_integers(0, draw.world_size, count, 1)
    column = torch.arange(vocab, device=draw.device)
    favored = (column // (vocab // draw.world_size) == owner) & (kind < 1)
    rows = rows + 4 * favored.to(draw.dtype)
    if 0 < k <= vocab - 2:
        best = rows.topk(k + 2, dim=-1)
        equal = torch.where(kind > 2, best.values[:, k - 1 : k], best.values[:, k:])
        rows.scatter_(1, best.indices[:, k:], equal)
    return rows


def _targets(draw: Draw, rows: torch.Tensor, which: Filter) -> tuple[torch.Tensor, torch.Tensor]:
    """A target a row, half of them kept and a fifth next to the cut, and which rows have a clear cut."""
    count, vocab = rows.shape
    # Some more than the best k, as several may equal the k-th.
    num_best = min(vocab, 2 * which.top_k + 16) if which.top_k else vocab
    best = rows.float().topk(num_best, dim=-1)
    values, k = best.values.double(), which.top_k or vocab
    is_best = values >= values[:, k - 1, None]
    mass = values.masked_fill(~is_best, -torch.inf).softmax(dim=-1)
    above = mass.cumsum(dim=-1) - mass
    stays = is_best & (above < which.top_p) if which.top_p < 1 else is_best
    num_kept = stays.sum(dim=-1).clamp_min(1)
    is_clear = is_best.sum(dim=-1).less(num_best) | (num_best == vocab)
    if which.top_p < 1:
        is_near = is_best & ((above - which.top_p).abs() < MARGIN)
        last = values.gather(1, num_kept[:, None] - 1)
        is_split = ((values == last) & is_best & ~stays).any(dim=-1)
        is_clear &= ~is_near[:, 1:].any(dim=-1) & ~is_split
    kind = draw.shared_uniform(0.0, 1.0, count)
    kept_place = (draw.shared_uniform(0.0, 1.0, count) * num_kept).long().clamp_max(num_best - 1)
    next_place = (num_kept - 1 + (kind < 0.6)).clamp_max(num_best - 1)
    place = torch.where(kind < 0.5, kept_place, next_place)
    target = best.indices.gather(1, place[:, None]).squeeze(1)
    return torch.where(kind < 0.7, target, draw.shared_integers(0, vocab, count)), is_clear
