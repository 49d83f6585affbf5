"""Judge's side of moe_all2all_primitive."""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import torch

from pkb.problems._check import exact
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# `rows` is what every rank sends, to destinations of equal weight or of `zipf` weights; without it counts are
# uniform up to `most`.
PROBLEM = Problem(
    number=27,
    group="collective",
    parallelism="ep",
    origin="VeOmni / Megatron-LM MoE all-to-all",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"most": 8, "hidden": 19},
        "tiny_skewed": {"rows": 23, "hidden": 19, "zipf": True},
        "base": {"rows": 1024, "hidden": 1024, "zipf": False},
        "large": {"rows": 32768, "hidden": 7168, "zipf": True},
    },
    check=exact(),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    world_size, rank = draw.world_size, draw.rank
    counts = _small_counts(size, draw) if "most" in size else _routed_counts(size, draw)
    sent, received = counts[rank].tolist(), counts[:, rank].tolist()
    tensor = draw.normal(sum(sent), size["hidden"])
    splits = (None, None) if _has_equal_splits(size, draw) else (sent, received)
    # The group is left out, all ranks, or None in turn; where all is left to defaults, only the tensor is
    # passed.
    if draw.index % 3 == 0:
        return (tensor,) if splits == (None, None) else (tensor, *splits)
    group = Group(parts=(tuple(range(world_size)),)) if draw.index % 3 == 1 else None
    return (tensor, *splits, group)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    blocks = _blocks(inputs_of_all_ranks, world_size)
    return [torch.cat([sent[rank] for sent in blocks]) for rank in range(world_size)]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Expected counts: the most popular rank receives most, the rank that keeps least for itself sends most.
    rows = size["rows"] if "rows" in size else world_size * size["most"] / 2
    share = _weights(world_size, zipf=size.get("zipf", False), device="cpu")
    received, sent = (world_size - 1) * rows * float(share.max()), rows * (1 - float(share.min()))
    row_bytes = size["hidden"] * dtype_bytes(dtype)
    return Cost(
        link_bytes=max(received, sent) * row_bytes if world_size > 1 else 0,
        hbm_bytes=(rows + world_size * rows * float(share.max())) * row_bytes,
        flops=0.0,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    if world_size == 1:
        return
    ranks = range(world_size)
    blocks = _blocks(inputs_of_all_ranks, world_size)
    got = [[sent[rank] for sent in blocks] for rank in ranks]
    yield "blocks in order of arrival", [torch.cat(got[r][r:] + got[r][:r]) for r in ranks]
    yield "blocks by descending source", [torch.cat(got[r][::-1]) for r in ranks]
    own = [[torch.zeros_like(b) if s == r else b for s, b in enumerate(got[r])] for r in ranks]
    yield "own block not written", [torch.cat(parts) for parts in own]
    counts = [[block.shape[0] for block in sent] for sent in blocks]
    # Each receiver looks its block up at the place where the block lies that it sends itself.
    wrong = [[_cut(inputs_of_all_ranks[s][0], sum(counts[r][:r]), counts[s][r]) for s in ranks] for r in ranks]
    yield "offsets from the receiver's own list", [torch.cat(parts) for parts in wrong]
    fixed = [torch.cat([tensor.tensor_split(world_size)[r] for tensor, *_ in inputs_of_all_ranks]) for r in ranks]
    yield "equal splits", fixed


def _cut(tensor: torch.Tensor, first: int, num_rows: int) -> torch.Tensor:
    """Rows from `first` on, from the beginning again after the end."""
    return tensor.roll(-first, dims=0)[:num_rows]


def _blocks(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[tuple[torch.Tensor, ...]]:
    """For each rank, what it addresses to each rank."""
    found = []
    for tensor, *optional in inputs_of_all_ranks:
        counts = optional[0] if optional else None
        if counts is None:
            counts = [tensor.shape[0] // world_size] * world_size
        ends = list(accumulate(counts))
        found.append(tuple(tensor[end - n : end] for end, n in zip(ends, counts, strict=True)))
    return found


def _has_equal_splits(size: Size, draw: Draw) -> bool:
    return "most" in size and draw.index % 4 == 3


def _small_counts(size: Size, draw: Draw) -> torch.Tensor:
    """Table of counts [source, destination] with whatever trips an exchange of uneven blocks."""
    world_size, index = draw.world_size, draw.index
    counts = draw.shared_integers(0, size["most"] + 1, world_size, world_size)
    cleared = draw.shared_uniform(0.0, 1.0, world_size, world_size) < 0.4
    if _has_equal_splits(size, draw):
        return torch.full_like(counts, 3)
    if index % 2 == 1:
        counts[cleared] = 0
    if index % 3 == 1:
        counts[:, 0] = 0
    if index % 3 == 2:
        counts[-1] = 0
    return counts


def _routed_counts(size: Size, draw: Draw) -> torch.Tensor:
    """Table of counts [source, destination] of rows that each choose a destination by weight."""
    world_size = draw.world_size
    popularity = draw.shared_uniform(0.0, 1.0, world_size).argsort()
    weights = _weights(world_size, zipf=size["zipf"], device=str(draw.device))[popularity]
    choice = draw.shared_uniform(0.0, 1.0, world_size, size["rows"])
    destination = torch.bucketize(choice, weights.cumsum(0)[:-1], right=True)
    pair = destination + world_size * torch.arange(world_size, device=draw.device).unsqueeze(1)
    return torch.bincount(pair.flatten(), minlength=world_size**2).view(world_size, world_size)


def _weights(world_size: int, *, zipf: bool, device: str) -> torch.Tensor:
    place = torch.arange(world_size, device=device, dtype=torch.float32)
    weights = 1 / (1 + place) if zipf else torch.ones_like(place)
    return weights / weights.sum()
