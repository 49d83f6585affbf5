"""Judge's side of openclip_contrastive_loss.

`tiny_sharp` is not in the catalogue: scores near -94 for two to four matching pairs of a rank, where exp of a score in
float32 overflows. The fp32 tolerance is the one that allows TF32. That the texts of every single rank matter is a near
miss here: a rank that draws its own pairs cannot redraw those of others.
"""

from collections.abc import Iterator
from math import log
from typing import Any

import torch

from pkb.problems._check import relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Group, Problem, Size, dtype_bytes

# `pairs` is B; of `wide_pairs` there are so many at W = 8; `total` is W B.
PROBLEM = Problem(
    number=58,
    group="loss",
    parallelism="dp",
    origin="OpenCLIP's SigLIP loss with bidirectional neighbor exchange",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"pairs": 11, "wide_pairs": 29, "width": 40},
        "tiny_sharp": {"pairs": 13, "width": 64, "sharp": True},
        "base": {"total": 1024, "width": 1024},
        "large": {"pairs": 8192, "width": 1152},
    },
    check=relative(bf16=1.5e-2, fp32=2e-3),
)

MAX_SCORES = 2**26
"""Scores that the oracle holds at once."""

MIN_TERMS = 4096
"""With fewer terms a running sum in bf16 may be good enough."""


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    num_pairs, width, device = _num_pairs(size, draw.world_size), size["width"], draw.device
    is_sharp = size.get("sharp", False)
    num_centers = num_pairs // 2 if is_sharp else max(2, num_pairs * draw.world_size // 4)
    centers = draw.shared_normal(num_centers, width).float()
    # Popular centers differ by rank, so that no rank's texts can stand for another's.
    ends = (0.15 + draw.uniform(0.0, 1.0, num_centers).square()).cumsum(0)
    image_center = torch.searchsorted(ends[:-1] / ends[-1], draw.uniform(0.0, 1.0, num_pairs))
    is_other = draw.uniform(0.0, 1.0, num_pairs) >= 0.95
    if is_sharp:
        scale, bias = 120.0 + 8 * (draw.index % 3), -94.0
        places = torch.arange(num_pairs, device=device) + draw.index
        is_other = places % num_pairs < 2 + draw.rank % 3
    else:
        bias = -2.0 - log(num_pairs * draw.world_size)
        scale = (4 + draw.index % 3 - bias) / 0.8
    other = (image_center + 1 + draw.integers(0, num_centers - 1, num_pairs)) % num_centers
    text_center = torch.where(is_other, other, image_center)
    image, text = (_near(centers[chosen], draw) for chosen in (image_center, text_center))
    if draw.index % 3 == 0:
        return image, text, scale, bias
    return image, text, scale, bias, Group.whole(draw.world_size) if draw.index % 3 == 1 else None


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[torch.Tensor]:
    texts = torch.cat([text.double() for _, text, *_ in inputs_of_all_ranks])
    answers = []
    for rank, (image, _, scale, bias, *_) in enumerate(inputs_of_all_ranks):
        own = torch.arange(len(image), device=image.device) + rank * len(image)
        columns = torch.arange(len(texts), device=image.device)
        num_parts = -(-len(image) * len(texts) // MAX_SCORES)
        sums = []
        for rows, places in zip(image.double().chunk(num_parts), own.chunk(num_parts), strict=True):
            signed = (scale * torch.einsum("id,jd->ij", rows, texts) + bias).mul_(
                torch.where(columns == places[:, None], -1.0, 1.0)
            )
            sums.append(torch.logaddexp(signed, torch.zeros_like(signed)).sum())
        answers.append(torch.stack(sums).sum() / len(image))
    return answers


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # The texts of all peers arrive, each read from the memory of its owner; images and own texts are read once.
    num_pairs, width = _num_pairs(size, world_size), size["width"]
    num_bytes = num_pairs * width * dtype_bytes(dtype)
    return Cost(
        link_bytes=(world_size - 1) * num_bytes,
        hbm_bytes=(world_size + 1) * num_bytes,
        flops=2.0 * num_pairs**2 * world_size * width,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    ranks = range(world_size)
    scores = [_scores(one, inputs_of_all_ranks) for one in inputs_of_all_ranks]
    parts = [[block.logaddexp(torch.zeros_like(block)).sum() / len(block) for block in blocks] for blocks in scores]
    matches = [scores[r][r].diagonal().mean() for r in ranks]
    # log(1 + exp(-z)) = log(1 + exp(z)) - z.
    yield "sum in place of the mean", [want * len(scores[0][0]) for want in expected]
    no_bias = [(*one[:3], 0.0) for one in inputs_of_all_ranks]
    yield "bias left out", oracle(no_bias, world_size)
    yield "matching pair one row off", [sum(parts[r]) - scores[r][r].roll(1, 0).diagonal().mean() for r in ranks]
    if world_size * len(scores[0][0]) ** 2 > MIN_TERMS:
        yield "running sum in bf16", [_bf16_sum(scores[r], r) for r in ranks]
    naive = [_overflowing(scores[r], r) for r in ranks]
    if any(bool(loss.isinf()) for loss in naive):
        yield "exp overflows", naive
    if inputs_of_all_ranks[0][3] > -50:
        # Elsewhere large scores of either sign may cancel.
        yield "no pair matches", [sum(parts[r]) for r in ranks]
    if world_size == 1:
        return
    yield "own texts alone", [parts[r][r] - matches[r] for r in ranks]
    yield (
        "row i matches in every block",
        [sum(parts[r]) - sum(block.diagonal().mean() for block in scores[r]) for r in ranks],
    )
    yield "divided by the number of all pairs", [want / world_size for want in expected]
    yield "mean over ranks", [torch.stack(expected).mean()] * world_size
    for offset in range(1, world_size):
        left_out = [expected[r] - parts[r][(r + offset) % world_size] for r in ranks]
        yield f"texts of the rank {offset} after left out", left_out
    if world_size % 2 == 0:
        twice = [expected[r] + parts[r][(r + world_size // 2) % world_size] for r in ranks]
        yield "texts of the rank opposite twice", twice


def _near(centers: torch.Tensor, draw: Draw) -> torch.Tensor:
    """Unit vectors near the given centers."""
    moved = centers + 0.5 * draw.normal(*centers.shape).float()
    return torch.nn.functional.normalize(moved, dim=1).to(draw.dtype)


def _scores(arguments: tuple[Any, ...], inputs_of_all_ranks: list[tuple[Any, ...]]) -> list[torch.Tensor]:
    """z of a rank's images and the texts of every rank."""
    image, _, scale, bias, *_ = arguments
    return [scale * image.double() @ one[1].double().T + bias for one in inputs_of_all_ranks]


def _signed(blocks: list[torch.Tensor], rank: int) -> torch.Tensor:
    """-y z of all texts, the blocks side by side."""
    own = blocks[rank] - 2 * blocks[rank].diagonal().diag()
    return torch.cat([own if s == rank else block for s, block in enumerate(blocks)], dim=1)


def _bf16_sum(blocks: list[torch.Tensor], rank: int) -> torch.Tensor:
    """Terms added up one after the other, rounded to bf16 after each addition."""
    signed = _signed(blocks, rank)
    terms = torch.logaddexp(signed, torch.zeros_like(signed)).flatten().bfloat16()
    total = torch.zeros_like(terms[0])
    for term in terms:
        total += term
    return total.double() / len(signed)


def _overflowing(blocks: list[torch.Tensor], rank: int) -> torch.Tensor:
    signed = _signed(blocks, rank).float()
    return signed.exp().add(1).log().sum().double() / len(signed)


def _num_pairs(size: Size, world_size: int) -> int:
    if "total" in size:
        return int(size["total"] // world_size)
    return int(size.get("wide_pairs", size["pairs"]) if world_size == 8 else size["pairs"])
