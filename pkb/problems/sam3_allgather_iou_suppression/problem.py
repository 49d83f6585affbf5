"""Judge's side of sam3_allgather_iou_suppression.

Every third draw has the threshold 1, where pairs of equal masks tell >= from >: their IoU is exactly 1 in any
arithmetic. All other IoUs lie near 0.2, 0.9 or 0.95, far from any threshold. `tiny_wide` is not in the catalogue: masks
of more pixels than bf16 can count. The baseline sends masks in their own dtype and widens them where they arrive.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import exact
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# Rank r has `counts`[r mod their number] objects (none on one rank in some draws), 1 + (r + draw) mod `cycle`, or a
# number between `fewest` and `most`.
PROBLEM = Problem(
    number=81,
    group="vision",
    parallelism="dp over objects",
    origin="SAM 3 multi-GPU video tracking (mask gather, suppression by recent occlusion)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"height": 14, "width": 11, "counts": (3, 1, 4, 2)},
        "tiny_wide": {"height": 37, "width": 43, "counts": (15, 8)},
        "base": {"height": 256, "width": 256, "cycle": 3},
        "large": {"height": 256, "width": 256, "fewest": 96, "most": 160},
    },
    check=exact(),
)

AREA = 0.35
FLIPPED = 0.02
FILL = -10.0


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    index, world_size = draw.index, draw.world_size
    counts = _counts(size, draw)
    num_objects, num_pixels = sum(counts), size["height"] * size["width"]
    templates = draw.shared_uniform(0.0, 1.0, max(1, num_objects // 3 + index % 2), num_pixels)
    inside = templates <= templates.kthvalue(round(AREA * num_pixels), dim=1, keepdim=True).values
    of_object = draw.shared_integers(0, len(inside), num_objects)
    is_flipped = draw.shared_uniform(0.0, 1.0, num_objects) < (0.4 if index % 3 == 2 else 0.6)
    is_empty = draw.shared_uniform(0.0, 1.0, num_objects).argsort() < min(2, num_objects // 5)
    last_occluded = draw.shared_integers(-1, 4, num_objects)
    first, num_own = sum(counts[: draw.rank]), counts[draw.rank]
    own = slice(first, first + num_own)
    chance = draw.uniform(0.0, 1.0, num_own, num_pixels)
    limit = chance.kthvalue(round(FLIPPED * num_pixels), dim=1, keepdim=True).values if num_own else chance
    flips = (chance <= limit) & is_flipped[own, None]
    is_inside = (inside[of_object[own]] ^ flips) & ~is_empty[own, None]
    masks = _values(draw, is_inside).view(num_own, size["height"], size["width"])
    arguments = (masks, draw.normal(num_own), counts, last_occluded)
    if index % 6 == 0:
        return arguments
    group = Group.whole(world_size) if index % 2 == 1 else None
    return (*arguments, (0.7, 0.5, 1.0)[index % 3], index % 2 == 1, group)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[tuple[torch.Tensor, ...]]:
    threshold, reverse = _options(inputs_of_all_ranks[0])
    masks, scores = _joined(inputs_of_all_ranks)
    answers: list[tuple[torch.Tensor, ...]] = []
    for _, _, _, last, *_ in inputs_of_all_ranks:
        loses = _loses(last, reverse) & _other(last > -1)
        answers.append(_filled(masks, scores, (loses & (_iou(masks > 0) >= threshold)).any(dim=1)))
    return answers


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Mean counts. What others hold comes in the dtype of the inputs; a rank's own masks are read once, and those of
    # all are written once, in float32. Intersections take a population count for 32 pixels of each pair.
    per_rank = (
        2.0
        if "cycle" in size
        else (size["fewest"] + size["most"]) / 2
        if "most" in size
        else sum(size["counts"]) / len(size["counts"])
    )
    pixels, num_objects = size["height"] * size["width"] + 1, per_rank * world_size
    return Cost(
        link_bytes=(num_objects - per_rank) * pixels * dtype_bytes(dtype),
        hbm_bytes=per_rank * pixels * dtype_bytes(dtype) + num_objects * pixels * 4,
        flops=num_objects**2 / 2 * pixels / 32,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    threshold, reverse = _options(inputs_of_all_ranks[0])
    masks, scores = _joined(inputs_of_all_ranks)
    counts, last = inputs_of_all_ranks[0][2:4]
    iou, known = _iou(masks > 0), last > -1
    overlaps, loses = iou >= threshold, _loses(last, reverse)
    right = expected[0][2]

    def answers(suppresses: torch.Tensor) -> list[Any]:
        """With a table of which object (row) is suppressed by which one."""
        return [_filled(masks, scores, suppresses.any(dim=1))] * world_size

    yield "nothing suppressed", [_filled(masks, scores, torch.zeros_like(right))] * world_size
    yield "0 counts as inside", answers((_iou(masks >= 0) >= threshold) & loses & _other(known))
    yield "IoU above the threshold", answers((iou > threshold) & loses & _other(known))
    yield "threshold of 0.7", answers((iou >= 0.7) & loses & _other(known))
    yield "only the first of a pair", answers((overlaps & loses & _other(known)).triu())
    yield "only the second of a pair", answers((overlaps & loses & _other(known)).tril())
    yield "-1 suppresses too", answers(overlaps & loses)
    yield "-1 asked of the suppressed one", answers(overlaps & loses & known[:, None])
    yield "compared the other way round", answers(overlaps & _loses(last, not reverse) & _other(known))
    equal = last[:, None] == last
    equal.fill_diagonal_(False)
    yield "equal ones suppress each other", answers(overlaps & (loses | equal) & _other(known))
    yield "counts that stick at 256", answers((_iou(masks > 0, largest=256) >= threshold) & loses & _other(known))
    whole = [(torch.where(right[:, None, None] & (masks > 0), FILL, masks), scores, right)] * world_size
    yield "-10 in pixels inside alone", whole
    yield "0 in place of -10", [(m.masked_fill(right[:, None, None], 0.0), s, f) for m, s, f in expected]
    yield "masks not suppressed", [(masks, scores, right)] * world_size
    yield "scores suppressed too", [(m, s.masked_fill(f, FILL), f) for m, s, f in expected]
    if world_size == 1:
        return
    rank_of = torch.repeat_interleave(torch.arange(world_size), torch.tensor(counts)).to(last.device)
    yield "pairs of one rank alone", answers(overlaps & loses & _other(known) & (rank_of[:, None] == rank_of))
    turned = [
        torch.cat([torch.nonzero(rank_of == (r + j) % world_size) for j in range(world_size)]).flatten()
        for r in range(world_size)
    ]
    yield (
        "ranks in order of arrival",
        [tuple(part[order] for part in one) for one, order in zip(expected, turned, strict=True)],
    )
    yield (
        "peers' masks not received",
        [(torch.where((rank_of == r)[:, None, None], m, 0.0), s, f) for r, (m, s, f) in enumerate(expected)],
    )


def _options(arguments: tuple[Any, ...]) -> tuple[float, bool]:
    return arguments[4:6] if len(arguments) > 4 else (0.7, False)


def _joined(inputs_of_all_ranks: list[tuple[Any, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
    masks, scores = (torch.cat([one[i] for one in inputs_of_all_ranks]).float() for i in (0, 1))
    return masks, scores


def _iou(inside: torch.Tensor, largest: int | None = None) -> torch.Tensor:
    """By the number of pixels in which two masks differ; `largest` bounds the counts."""
    flat = inside.flatten(1).double()
    area = flat.sum(dim=1)
    both = (area[:, None] + area - torch.cdist(flat, flat, p=1.0)) / 2
    if largest is not None:
        area, both = area.clamp_max(largest), both.clamp_max(largest)
    return both / (area[:, None] + area - both).clamp_min(1)


def _loses(last: torch.Tensor, reverse: bool) -> torch.Tensor:
    """Whether the object of a row would be suppressed by that of a column."""
    return last[:, None] < last if reverse else last[:, None] > last


def _other(flags: torch.Tensor) -> torch.Tensor:
    """Flags of the objects in columns."""
    return flags[None, :]


def _filled(masks: torch.Tensor, scores: torch.Tensor, suppressed: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.where(suppressed[:, None, None], FILL, masks), scores, suppressed


def _counts(size: Size, draw: Draw) -> list[int]:
    world_size, index = draw.world_size, draw.index
    if "most" in size:
        found: list[int] = draw.shared_integers(size["fewest"], size["most"] + 1, world_size).tolist()
        return found
    if "cycle" in size:
        return [1 + (rank + index) % size["cycle"] for rank in range(world_size)]
    counts = [size["counts"][rank % len(size["counts"])] for rank in range(world_size)]
    if world_size > 1 and index % 3 == 1:
        counts[index // 3 % world_size] = 0
    return counts


def _values(draw: Draw, is_inside: torch.Tensor) -> torch.Tensor:
    """Positive inside; outside negative, or exactly 0 for 30 % of the pixels."""
    magnitude = draw.uniform(0.01, 8.0, *is_inside.shape)
    outside = torch.where(draw.uniform(0.0, 1.0, *is_inside.shape) < 0.3, 0.0, -magnitude)
    return torch.where(is_inside, magnitude, outside).to(draw.dtype)
