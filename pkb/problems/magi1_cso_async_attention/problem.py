"""Judge's side of magi1_cso_async_attention.

The fp32 tolerance is the one that allows TF32. Numbers of heads and ranges that raise ValueError are not judged. The
baseline sends queries and outputs apart: packing them together costs a copy and saves a launch. It starts all
exchanges of queries at once, which leaves those of later ranges under the arithmetic of the first.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._attention import attend
from pkb.problems._check import ELEMENTS, Expected, Region, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# `m` is the tokens of a range on one rank; elsewhere it follows from `clip`. `wide_heads` and `wide_clip` hold for
# W = 8. `history` counts the earlier ranges that a window takes in. Tiny sizes vary ranges, clip and heads.
PROBLEM = Problem(
    number=77,
    group="attention",
    parallelism="cp",
    origin="MAGI-1 context shuffle overlap (CSO) attention",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"m": 5, "d": 8},
        "base": {"ranges": 4, "d": 128, "heads": (24, 48), "kv_heads": 8, "clip": (12150, 21600), "history": 0},
        "large": {"ranges": 4, "d": 128, "heads": (48, 48), "kv_heads": 8, "clip": (21600, 21600), "history": 1},
    },
    check=relative(bf16=1.5e-2, fp32=2e-3, elements=ELEMENTS),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    world_size, index = draw.world_size, draw.index
    num_ranges, m, heads, kv_heads, clip = _dimensions(size, world_size, index)
    num_tokens = num_ranges * m
    # Peaked softmax: averages over many keys would shrink towards 0.
    query = draw.normal(num_tokens, heads, size["d"], scale=2.0)
    key_value = draw.normal(num_tokens, kv_heads, 2 * size["d"])
    windows = torch.tensor(_windows(size, num_ranges, clip), device=draw.device)
    group = Group.whole(world_size) if index % 2 == 1 else None
    given = None if "m" in size and clip == world_size * m else clip
    if group is None and given is None:
        return query, key_value, windows, num_ranges
    return query, key_value, windows, num_ranges, given, group


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Expected]:
    num_ranges, clip = _options(inputs_of_all_ranks)
    kv = _positions([one[1] for one in inputs_of_all_ranks], num_ranges)[:, :clip].flatten(0, 1)
    return _answers(inputs_of_all_ranks, kv, inputs_of_all_ranks[0][2].tolist())


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Queries leave and outputs come home, all but a rank's own heads; keys and values of the own heads, which several
    # ranks share where there are fewer heads than ranks, come from all peers. Queries and outputs pass memory once,
    # keys and values once for every window that they are in.
    num_ranges, m, heads, kv_heads, clip = _dimensions(size, world_size, 1)
    num_keys = sum(end - first for first, end in _windows(size, num_ranges, clip))
    queries = 2 * num_ranges * m * heads * size["d"] * dtype_bytes(dtype)
    key_bytes = 2 * max(kv_heads, world_size) / world_size * size["d"] * dtype_bytes(dtype)
    return Cost(
        link_bytes=(queries + num_ranges * clip * key_bytes) * (world_size - 1) / world_size,
        hbm_bytes=queries + num_keys * key_bytes,
        flops=4.0 * m * num_keys * heads * size["d"],
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    num_ranges, clip = _options(inputs_of_all_ranks)
    query, key_value, k_ranges, *_ = inputs_of_all_ranks[0]
    windows = k_ranges.tolist()
    whole = _positions([one[1] for one in inputs_of_all_ranks], num_ranges)
    kv = whole[:, :clip].flatten(0, 1)
    d = query.shape[2]
    yield "keys and values exchanged", _answers(inputs_of_all_ranks, kv.roll(d, 2), windows)
    yield "scores not scaled", _answers(inputs_of_all_ranks, kv, windows, scale=1.0)
    late = [(first, end + (1 if end < len(kv) else -1)) for first, end in windows]
    yield "windows end one key off", _answers(inputs_of_all_ranks, kv, late)
    group_size = query.shape[1] // key_value.shape[1]
    dealt = torch.arange(query.shape[1], device=kv.device) % key_value.shape[1]
    yield "KV heads dealt out in turn", _answers(inputs_of_all_ranks, kv, windows, heads=dealt)
    shifted = (torch.arange(query.shape[1], device=kv.device) // group_size + 1) % key_value.shape[1]
    yield "another KV head", _answers(inputs_of_all_ranks, kv, windows, heads=shifted)
    if clip < whole.shape[1]:
        yield "ranges not clipped", _answers(inputs_of_all_ranks, whole.flatten(0, 1), windows)
        yield "outputs of queries beyond the clip left out", _without_padded(expected, num_ranges, clip)
    if num_ranges > 1:
        own = [(max(first, i * clip), end) for i, (first, end) in enumerate(windows)]
        yield "windows cut to the own range", _answers(inputs_of_all_ranks, kv, own)
        yield "window of another range", _answers(inputs_of_all_ranks, kv, windows[1:] + windows[:1])
        yield "all keys up to the window's end", _answers(inputs_of_all_ranks, kv, [(0, end) for _, end in windows])
    if len(expected) > 1:
        yield from _peer_misses(expected, inputs_of_all_ranks, kv)


def _peer_misses(
    expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]], kv: torch.Tensor
) -> Iterator[tuple[str, list[Any]]]:
    ranks = range(len(expected))
    num_ranges, clip = _options(inputs_of_all_ranks)
    windows = inputs_of_all_ranks[0][2].tolist()
    yield "another rank's queries", [expected[rank - 1].value for rank in ranks]
    if num_ranges > 1:
        by_rank = torch.cat([one[1] for one in inputs_of_all_ranks])
        yield "keys by rank, then by range", _answers(inputs_of_all_ranks, by_rank, windows)
        swapped = [one.value.unflatten(0, (num_ranges, -1)).flip(0).flatten(0, 1) for one in expected]
        yield "outputs of the ranges in another order", swapped
    shift = expected[0].value.shape[1] // len(ranks)
    yield "heads brought home in another order", [one.value.roll(shift, 1) for one in expected]
    backwards = _positions([one[1] for one in inputs_of_all_ranks[::-1]], num_ranges)[:, :clip].flatten(0, 1)
    yield "ranks' keys by descending rank", _answers(inputs_of_all_ranks, backwards, windows)
    m = inputs_of_all_ranks[0][0].shape[0] // num_ranges
    absent = torch.arange(kv.shape[0], device=kv.device) % clip // m == ranks[-1]
    # Zero keys and values stay in the softmax with a score of 0.
    zeroed = torch.where(absent[:, None, None], 0.0, kv)
    yield "last rank's keys not received", _answers(inputs_of_all_ranks, zeroed, windows)


def _answers(
    inputs_of_all_ranks: list[tuple[Any, ...]],
    kv: torch.Tensor,
    windows: list[Any],
    scale: float | None = None,
    heads: torch.Tensor | None = None,
) -> list[Expected]:
    """Each rank's part of the attention of whole ranges to windows of the key sequence [keys, Hkv, 2 D]."""
    queries = _positions([one[0] for one in inputs_of_all_ranks], len(windows))
    num_heads, d = queries.shape[2:]
    if heads is None:
        heads = torch.arange(num_heads, device=kv.device) // (num_heads // kv.shape[1])
    outs = []
    for of_range, (first, end) in zip(queries, windows, strict=True):
        keys, values = kv[None, first:end, heads, :d], kv[None, first:end, heads, d:]
        outs.append(attend(of_range[None], keys, values, d**-0.5 if scale is None else scale)[0][0])
    world_size = len(inputs_of_all_ranks)
    m = queries.shape[1] // world_size
    regions = [Region(f"range {i}", slice(i * m, (i + 1) * m)) for i in range(len(windows))]
    by_rank = zip(*(out.chunk(world_size) for out in outs), strict=True)
    return [Expected(torch.cat(parts), regions=tuple(regions)) for parts in by_rank]


def _without_padded(expected: list[Any], num_ranges: int, clip: int) -> list[torch.Tensor]:
    """Zeros for the queries at positions of a range from the clip on."""
    answers = []
    for rank, one in enumerate(expected):
        places = torch.arange(one.value.shape[0] // num_ranges, device=one.value.device)
        is_kept = (rank * len(places) + places < clip).repeat(num_ranges)
        answers.append(torch.where(is_kept[:, None, None], one.value, 0.0))
    return answers


def _positions(of_ranks: list[torch.Tensor], num_ranges: int) -> torch.Tensor:
    """Tokens by range and position [R, W m, heads, ..]."""
    return torch.cat([torch.unflatten(tokens, 0, (num_ranges, -1)) for tokens in of_ranks], dim=1)


def _options(inputs_of_all_ranks: list[tuple[Any, ...]]) -> tuple[int, int]:
    """Number of ranges, and positions that are kept of each."""
    query, _, _, num_ranges, *rest = inputs_of_all_ranks[0]
    clip = rest[0] if rest else None
    return num_ranges, len(inputs_of_all_ranks) * (query.shape[0] // num_ranges) if clip is None else clip


def _dimensions(size: Size, world_size: int, index: int) -> tuple[int, int, int, int, int]:
    """Ranges, tokens of one on a rank, heads, KV heads, positions kept."""
    if "m" in size:
        kv_heads = 2 if index % 4 in (1, 2) else 2 * world_size
        clip = world_size * size["m"] - (2 if index % 2 == 0 else 0)
        return 1 + index % 3, size["m"], 4 * max(kv_heads, world_size), kv_heads, clip
    clip = size["clip"][world_size == 8]
    return size["ranges"], -(-clip // world_size), size["heads"][world_size == 8], size["kv_heads"], clip


def _windows(size: Size, num_ranges: int, clip: int) -> list[tuple[int, int]]:
    ranges = range(num_ranges)
    if "m" in size:
        return [(max(0, (i - 1) * clip + 1), (i + 1) * clip - (i == 1)) for i in ranges]
    return [(max(0, i - size["history"]) * clip, (i + 1) * clip) for i in ranges]
