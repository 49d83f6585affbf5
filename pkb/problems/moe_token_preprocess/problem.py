"""Judge's side of moe_token_preprocess.

No argument has the working dtype, so the problem is judged once. Masks in int64 are left to tiny sizes, so that the
cost does not change with the draw. `tiny` has K up to 4 by draw, `tiny_wide` more experts. A result returned before the
counts of slow peers arrive stands as one with zeros for the last rank.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import Expected, exact
from pkb.problems._draw import Draw
from pkb.problems._moe import choice_mask
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size

# Where `tiny`, the number of tokens changes with draw and rank.
PROBLEM = Problem(
    number=26,
    group="moe",
    parallelism="ep",
    origin="VeOmni preprocess (Megatron-LM's all-to-all token dispatcher)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"rows": 37, "num_experts": 8, "top_k": (2, 3, 4), "tiny": True},
        "tiny_wide": {"rows": 37, "num_experts": 16, "top_k": (4, 2, 3), "tiny": True},
        "base": {"rows": 1024, "num_experts": 8, "top_k": (2, 2, 2)},
        "large": {"rows": 65536, "num_experts": 256, "top_k": (8, 8, 8)},
    },
    check=exact(),
    dtypes=("fp32",),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    num_experts, top_k, index = size["num_experts"], size["top_k"][draw.index % 3], draw.index
    is_tiny = size.get("tiny", False)
    num_tokens = size["rows"] + (3 * index + 2 * draw.rank if is_tiny else 0)
    # Uneven loads of this rank's own, so that another rank's counts show; a quarter of the experts has none.
    weights = draw.uniform(0.02, 1.0, num_experts) ** 4
    weights[draw.permutation(num_experts)[: num_experts // 4]] = 0
    if index % 2 == 1 and draw.world_size > 1:
        weights[: num_experts // draw.world_size] = 0
    ends = (weights.double().cumsum(0) / weights.double().sum())[:-1].float()
    choice = torch.bucketize(draw.uniform(0.0, 1.0, num_tokens, top_k), ends, right=True)
    choice = choice.masked_fill(draw.uniform(0.0, 1.0, num_tokens, top_k) < 0.1, -1)
    is_integer = is_tiny and index % 4 >= 2
    mask = choice_mask(choice, num_experts, torch.int64 if is_integer else torch.float32)
    if index % 3 == 0:
        return mask, num_experts
    return mask, num_experts, Group.whole(draw.world_size) if index % 3 == 1 else None


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Any]:
    return _answers([_counts(one[0]) for one in inputs_of_all_ranks])


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # The mask, in fp32, is read once; counts of the own experts come from every other rank.
    num_experts, num_elems = size["num_experts"], size["num_experts"] * size["top_k"][0] * size["rows"]
    return Cost(
        link_bytes=4.0 * (world_size - 1) * num_experts / world_size,
        hbm_bytes=4.0 * num_elems,
        flops=float(num_elems),
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size, ranks = len(expected), range(len(expected))
    masks = [one[0] for one in inputs_of_all_ranks]
    # The memory of the view is [M, K, E]; read as [E, K, M] it is another mask.
    in_memory = [mask.permute(2, 1, 0).reshape(mask.shape) for mask in masks]
    yield "view read as if it were contiguous", _answers([_counts(mask) for mask in in_memory])
    yield "tokens counted instead of slots", _answers([mask.amax(dim=1).sum(dim=-1) for mask in masks])
    yield "first slot alone", _answers([_counts(mask[:, :1]) for mask in masks])
    yield "cleared slots counted for expert 0", _answers([_counts(_with_cleared(mask)) for mask in masks])
    used = [torch.cat((c[c > 0], c[c == 0])) for c in map(_counts, masks)]
    yield "unused experts left out", _answers(used)
    values = [[leaf.value for leaf in one] for one in expected]
    yield "splits in int32", [(a.int(), b.int(), c, d) for a, b, c, d in values]
    other = torch.float32 if masks[0].dtype == torch.int64 else torch.int64
    yield "counts in another dtype", [(a, b, c.to(other), d.to(other)) for a, b, c, d in values]
    if world_size == 1:
        return
    turned = [(a, b.roll(1), c.roll(1, dims=0), d) for a, b, c, d in values]
    yield "sources shifted by one", turned
    yield "another rank's experts", [(values[r][0], *values[r - 1][1:]) for r in ranks]
    yield "splits exchanged", [(b, a, c, d) for a, b, c, d in values]
    counts = [_counts(mask) for mask in masks]
    late = _answers([*counts[:-1], torch.zeros_like(counts[-1])])
    yield "last rank's counts not arrived", [*late[:-1], expected[-1]]
    dealt = _answers([c.view(-1, world_size).t().flatten() for c in counts])
    yield "expert i on rank i mod W", dealt
    yield "own counts alone", [(a, b, c, c[r].clone()) for r, (a, b, c, d) in enumerate(values)]


def _counts(mask: torch.Tensor) -> torch.Tensor:
    return torch.einsum("ekt->e", mask)


def _answers(counts: list[torch.Tensor]) -> list[Any]:
    """Outputs of all ranks for the counts [E] of each."""
    table = torch.stack(counts)
    world_size = len(counts)
    owner = torch.arange(table.shape[1], device=table.device) * world_size // table.shape[1]
    splits = torch.stack([table[:, owner == rank].sum(dim=1) for rank in range(world_size)]).long()
    found = []
    for rank in range(world_size):
        own = table[:, owner == rank]
        outputs = (splits[:, rank], splits[rank], own, own.sum(dim=0))
        found.append(tuple(Expected(output.cpu(), device="cpu") for output in outputs))
    return found


def _with_cleared(mask: torch.Tensor) -> torch.Tensor:
    """The mask where slots of zeros are expert 0's."""
    whole = mask.clone()
    whole[0] += 1 - mask.sum(dim=0)
    return whole
