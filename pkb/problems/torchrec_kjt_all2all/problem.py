"""Judge's side of torchrec_kjt_all2all.

Weights are of the working dtype; in the catalogue they are float32 always. Values are below 2^40, rather than 10^6, so
that the upper halves of int64 count. The baseline gathers the sizes of all keys of all ranks at once, and joins
segments with one `torch.cat`, which is as fast with ragged batches.
"""

from collections.abc import Iterator
from math import log1p
from typing import Any

import torch

from pkb.problems._check import exact
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# Rank d owns `keys`[d mod their number] keys, or `keys_in_all` / W. `mean` is the mean length of a bag: uniform between
# `shortest` and `longest`, or geometric up to `longest` with 30 % of empty bags. The batch of `one_rank` is that of a
# rank alone.
PROBLEM = Problem(
    number=70,
    group="recommendation",
    parallelism="dp to model-parallel embedding tables",
    origin="TorchRec KJTAllToAll (input distribution with recat, stagger and variable strides)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"keys": (2, 1, 3), "batch": 6, "one_rank": 6, "shortest": 0, "longest": 4, "mean": 1.2},
        "base": {"keys": (1, 2, 3), "batch": 512, "one_rank": 1024, "shortest": 5, "longest": 20, "mean": 12.5},
        "large": {"keys_in_all": 208, "batch": 8192, "one_rank": 8192, "longest": 400, "mean": 20.0},
    },
    check=exact(),
)

DEFAULTS: tuple[Any, ...] = (None, None, 1)
"""Of weights, strides by key and stagger."""
EMPTY_SHARE = 0.3
"""Of the bags of large sizes, above those that are empty by chance."""


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    world_size, rank, index = draw.world_size, draw.rank, draw.index
    key_splits = _key_splits(size, world_size)
    batch_size = size["one_rank"] if world_size == 1 else size["batch"]
    strides, stagger = None, 1
    # Ragged batches, strides by key, and a rank without keys in turn.
    variant = index % 4 if "shortest" in size and size["shortest"] == 0 else 0
    if variant == 1:
        batch_size = 3 + 2 * (rank % 3)
    elif variant == 2:
        strides = draw.integers(0, 5, sum(key_splits)).tolist()
    elif variant == 3 and world_size > 1:
        key_splits[index // 4 % world_size] = 0
    num_bags = batch_size * sum(key_splits) if strides is None else sum(strides)
    lengths = _lengths(size, draw, num_bags)
    values = draw.integers(0, 2**40, int(lengths.sum()))
    if "shortest" not in size:
        return lengths, values, key_splits, batch_size, None, draw.normal(len(values))
    if variant == 0 and index % 3 == 0:
        return lengths, values, key_splits, batch_size
    if index % 7 > 0 and world_size % 2 == 0:
        stagger = 2
    weights = draw.normal(len(values)) if variant in (1, 2) else None
    group = Group.whole(world_size) if index % 2 == 1 else None
    return lengths, values, key_splits, batch_size, group, weights, strides, stagger


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[dict[str, torch.Tensor]]:
    return [_answer(inputs_of_all_ranks, rank) for rank in range(world_size)]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # The rank with most keys receives most, the one with fewest sends most. Everything is read once and written once.
    # Draws of tiny sizes are counted without weights, which some have.
    key_splits = _key_splits(size, world_size)
    batch_size = size["one_rank"] if world_size == 1 else size["batch"]
    entry_bytes = 8 if "shortest" in size else 8 + dtype_bytes(dtype)
    key_bytes = batch_size * (8 + size["mean"] * entry_bytes)
    received, sent = (world_size - 1) * max(key_splits), sum(key_splits) - min(key_splits)
    return Cost(
        link_bytes=max(received, sent) * key_bytes if world_size > 1 else 0.0,
        hbm_bytes=(sum(key_splits) + world_size * max(key_splits)) * key_bytes,
        flops=0.0,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    ranks = range(world_size)
    *_, stagger = _options(inputs_of_all_ranks[0])

    def exchanged(others: list[Any], *names: str) -> list[Any]:
        """The answers with some entries of other ones."""
        return [
            one | {name: other[name] for name in names if name in one}
            for one, other in zip(expected, others, strict=True)
        ]

    yield "lower halves of values alone", [one | {"values": one["values"] & 0xFFFFFFFF} for one in expected]
    yield (
        "first half of the bytes of values",
        [one | {"values": one["values"].view(torch.int32)[: len(one["values"])].long()} for one in expected],
    )
    yield "values backwards", [one | {"values": one["values"].flip(0)} for one in expected]
    yield "empty bags dropped", [one | {"lengths": one["lengths"][one["lengths"] > 0]} for one in expected]
    yield "stride left out", [{k: v for k, v in one.items() if not k.startswith("stride")} for one in expected]
    if world_size == 1:
        return
    by_source = [_answer(inputs_of_all_ranks, rank, by_key=False) for rank in ranks]
    yield "values by source", exchanged(by_source, "values")
    yield "lengths by source", exchanged(by_source, "lengths")
    yield "nothing by key", exchanged(by_source, "values", "lengths", "weights")
    yield "weights by source", exchanged(by_source, "weights")
    backwards = [_answer(inputs_of_all_ranks, rank, order=list(ranks)[::-1]) for rank in ranks]
    yield "sources by descending rank", backwards
    turned = [_answer(inputs_of_all_ranks, r, order=[*ranks[r:], *ranks[:r]]) for r in ranks]
    yield "sources in order of arrival", turned
    yield from _wrong_strides(expected, inputs_of_all_ranks)
    if world_size == 2:
        return
    plain = [_answer(inputs_of_all_ranks, rank, order=list(ranks)) for rank in ranks]
    yield "stagger left out", plain
    yield "strides by key not staggered", exchanged(plain, "stride_per_key_per_rank")
    if world_size > 4:
        # Four ranks make two groups of two either way.
        wrong = _order(world_size, world_size // stagger)
        yield "stagger taken for the number of groups", [_answer(inputs_of_all_ranks, r, order=wrong) for r in ranks]


def _wrong_strides(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    if "stride" not in expected[0]:
        return
    own = [one[3] for one in inputs_of_all_ranks]
    yield (
        "own batch size for all",
        [
            one | {"stride_per_rank": torch.full_like(one["stride_per_rank"], size)}
            for one, size in zip(expected, own, strict=True)
        ],
    )
    yield (
        "own batch size in place of the sum",
        [one | {"stride": torch.full_like(one["stride"], size)} for one, size in zip(expected, own, strict=True)],
    )
    if len(expected) > 2:
        order = _order(len(expected), _options(inputs_of_all_ranks[0])[2])
        yield (
            "stride_per_rank staggered too",
            [one | {"stride_per_rank": one["stride_per_rank"][order]} for one in expected],
        )


def _options(arguments: tuple[Any, ...]) -> tuple[torch.Tensor | None, list[int] | None, int]:
    """Weights, strides by key, stagger."""
    weights, strides, stagger = (*arguments[5:], *DEFAULTS[max(0, len(arguments) - 5) :])
    return weights, strides, stagger


def _order(world_size: int, stagger: int) -> list[int]:
    return torch.arange(world_size).view(stagger, -1).t().flatten().tolist()


def _answer(
    inputs_of_all_ranks: list[tuple[Any, ...]], rank: int, *, order: list[int] | None = None, by_key: bool = True
) -> dict[str, torch.Tensor]:
    """The answer of a rank: bags of its keys sorted by key and by the place of their source in the order."""
    world_size, key_splits = len(inputs_of_all_ranks), inputs_of_all_ranks[0][2]
    weighted, has_strides, stagger = _options(inputs_of_all_ranks[0])
    device = inputs_of_all_ranks[0][0].device
    order = order or _order(world_size, stagger)
    first, num_own = sum(key_splits[:rank]), key_splits[rank]
    strides = torch.empty((num_own, world_size), dtype=torch.int64, device=device)
    bags, entries, columns = [], [], []
    for source, (lengths, values, _, batch_size, *_) in enumerate(inputs_of_all_ranks):
        weights, by_stride, _ = _options(inputs_of_all_ranks[source])
        num_bags = torch.tensor(by_stride or [batch_size] * sum(key_splits), dtype=torch.int64, device=device)
        key = torch.arange(len(num_bags), device=device).repeat_interleave(num_bags) - first
        strides[:, order.index(source)] = num_bags[first : first + num_own]
        is_own = (key >= 0) & (key < num_own)
        place = key * world_size + order.index(source) if by_key else key + source * num_own
        is_own_entry = is_own.repeat_interleave(lengths)
        bags.append((place[is_own], lengths[is_own]))
        columns.append([values[is_own_entry]] if weights is None else [values[is_own_entry], weights[is_own_entry]])
        entries.append(place.repeat_interleave(lengths)[is_own_entry])
    place, lengths = (torch.cat(part) for part in zip(*bags, strict=True))
    sorting = torch.cat(entries).argsort(stable=True)
    sorted_columns = [torch.cat(column)[sorting] for column in zip(*columns, strict=True)]
    answer = {"lengths": lengths[place.argsort(stable=True)], "values": sorted_columns[0]}
    if weighted is not None:
        answer["weights"] = sorted_columns[1]
    if has_strides is not None:
        return answer | {"stride_per_key_per_rank": strides}
    by_rank = torch.tensor([one[3] for one in inputs_of_all_ranks], device=device)
    return answer | {"stride": by_rank.sum(), "stride_per_rank": by_rank}


def _key_splits(size: Size, world_size: int) -> list[int]:
    if "keys_in_all" in size:
        return [int(size["keys_in_all"]) // world_size] * world_size
    return [size["keys"][d % len(size["keys"])] for d in range(world_size)]


def _lengths(size: Size, draw: Draw, num_bags: int) -> torch.Tensor:
    if "shortest" not in size:
        # The number of failures before a success, with a mean that makes up for the bags that are emptied.
        mean = size["mean"] / (1 - EMPTY_SHARE)
        draws = draw.uniform(0.0, 1.0, num_bags).clamp_min(2.0**-30).log() / -log1p(1 / mean)
        lengths = draws.clamp_max(size["longest"]).long()
        return lengths.masked_fill(draw.uniform(0.0, 1.0, num_bags) < EMPTY_SHARE, 0)
    lengths = draw.integers(size["shortest"], size["longest"] + 1, num_bags)
    if size["shortest"] > 0:
        return lengths
    return lengths.masked_fill(draw.uniform(0.0, 1.0, num_bags) < 0.4, 0)
