"""Judge's side of load_balancing_loss_fn.

Where equal probabilities could make much of a difference, at the small sizes, rows whose cut is not clear in bf16 are
left out: there any choice is right, and a few such rows would use up the tolerance. In `large` choices that go either
way average out. Layers differ a little in their skew, so that one does not stand for all. The tolerance in bf16 is
1e-3: one scalar says little, and with 1e-2 another draw, or twice the logits of one of the ranks, could pass by
chance; rounding p costs a tenth of that. The baseline marks hits in one tensor of the logits' shape; the published
one-hot tensor is top_k times as large, in int64.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import Expected, relative
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# Rank r has `layers` tensors of `batch` times (`seq` + r `more`) rows. With `mask`, its dtype; with `mask_seldom` it
# is left out in every second draw.
PROBLEM = Problem(
    number=24,
    group="moe",
    parallelism="dp / ep",
    origin="Hugging Face Mixtral / Qwen-MoE auxiliary loss (Switch Transformer), averaged over ranks as in VeOmni",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"experts": 8, "top_k": 2, "layers": 1, "batch": 1, "seq": 301, "more": 0},
        "tiny_layers": {"experts": 13, "top_k": 3, "layers": 3, "batch": 2, "seq": 77, "more": 2, "mask": "int64"},
        "tiny_top1": {"experts": 16, "top_k": 1, "layers": 2, "batch": 4, "seq": 60, "more": 0},
        "tiny_masked": {"experts": 10, "top_k": 4, "layers": 1, "batch": 6, "seq": 55, "more": 3, "mask": "fp32"},
        "base": {"experts": 8, "top_k": 2, "layers": 1, "batch": 1, "seq": 1024, "more": 0},
        "large": {
            "experts": 128,
            "top_k": 8,
            "layers": 32,
            "batch": 4,
            "seq": 4096,
            "more": 0,
            "mask": "int64",
            "mask_seldom": True,
            "any_cut": True,
        },
    },
    check=relative(bf16=1e-3, fp32=1e-4),
)

MARGIN = 0.02
"""Between the last logit chosen and the next one: more than bf16 probabilities need to differ."""


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    num_experts, top_k = size["experts"], size["top_k"]
    batch, seq = size["batch"], size["seq"] + draw.rank * size["more"]
    has_mask = "mask" in size and not (size.get("mask_seldom", False) and draw.index % 2 == 0)
    lengths = draw.integers(-(-seq // 3), seq, batch)
    is_token = torch.arange(seq, device=draw.device) < lengths.unsqueeze(1)
    # Skewed logits, so that the loss is far from top_k and differs by rank; padding goes to other experts.
    skew = 2 * draw.normal(2, num_experts).float()
    offset = torch.where(is_token.reshape(-1, 1), skew[0], skew[1]) if has_mask else skew[0]
    layers = [
        _layer(size, draw, offset + 0.7 * draw.normal(num_experts).float(), batch * seq) for _ in range(size["layers"])
    ]
    logits: Any = layers[0]
    if len(layers) > 1:
        logits = layers if draw.index % 2 == 0 else tuple(layers)
    elif draw.index % 4 == 3:
        logits = (layers[0],)
    if has_mask:
        return logits, num_experts, top_k, is_token.to(torch.int64 if size["mask"] == "int64" else torch.float32)
    if top_k == 2 and draw.index % 2 == 1:
        return logits, num_experts
    return (logits, num_experts, top_k, None) if draw.index % 4 == 0 else (logits, num_experts, top_k)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Expected]:
    losses = [_loss(*_statistics(*_parts(arguments))) for arguments in inputs_of_all_ranks]
    return [Expected(torch.stack(losses).mean(), torch.float32)] * world_size


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # One float32 goes to every peer; logits and mask are read once by the rank that has most of them.
    num_tokens = size["batch"] * (size["seq"] + (world_size - 1) * size["more"])
    num_logits = size["layers"] * num_tokens * size["experts"]
    mask_bytes = {"int64": 8, "fp32": 4}[size["mask"]] if "mask" in size and "mask_seldom" not in size else 0
    return Cost(
        link_bytes=4.0 * (world_size - 1),
        hbm_bytes=num_logits * dtype_bytes(dtype) + num_tokens * mask_bytes + 4,
        flops=10.0 * num_logits,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    parts = [_parts(arguments) for arguments in inputs_of_all_ranks]
    top_k = parts[0][1]

    def mean(losses: list[torch.Tensor]) -> list[Any]:
        return [Expected(torch.stack(losses).mean(), torch.float32)] * world_size

    plain = [_statistics(*part) for part in parts]
    losses = [_loss(f, P) for f, P in plain]
    yield "top_k, the loss of even logits", mean([torch.full_like(loss, top_k) for loss in losses])
    yield "number of experts left out", mean([torch.dot(f, P) for f, P in plain])
    if top_k > 1:
        yield "f divided by top_k", mean([loss / top_k for loss in losses])
        yield "best expert alone", mean([_loss(*_statistics(layers, 1, mask)) for layers, _, mask in parts])
    if top_k != 2:
        yield "top 2 whatever top_k", mean([_loss(*_statistics(layers, 2, mask)) for layers, _, mask in parts])
    if len(parts[0][0]) > 1:
        yield "last layer alone", mean([_loss(*_statistics(layers[-1:], k, mask)) for layers, k, mask in parts])
    if parts[0][2] is not None:
        unmasked = [_statistics(layers, k, None) for layers, k, _ in parts]
        pairs = list(zip(plain, unmasked, strict=True))
        yield "mask left out", mean([_loss(f, P) for f, P in unmasked])
        yield "mask applied to f only", mean([_loss(f, P) for (f, _), (_, P) in pairs])
        yield "mask applied to P only", mean([_loss(f, P) for (_, P), (f, _) in pairs])
        turned = [_statistics(layers, k, _turned(mask)) for layers, k, mask in parts]
        yield "mask by position before batch", mean([_loss(f, P) for f, P in turned])
        if len(parts[0][0]) > 1:
            repeated = [_statistics(layers, k, _each_repeated(mask, len(layers))) for layers, k, mask in parts]
            yield "mask repeated token by token", mean([_loss(f, P) for f, P in repeated])
    if world_size == 1:
        return
    pooled = torch.stack([f for f, _ in plain]).mean(dim=0), torch.stack([P for _, P in plain]).mean(dim=0)
    yield "f and P pooled over ranks", mean([_loss(*pooled)])
    yield "own loss", [Expected(loss, torch.float32) for loss in losses]
    yield "sum over ranks", mean([loss * world_size for loss in losses])


def _layer(size: Size, draw: Draw, offset: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Logits of one layer; each row has, unless the size takes any, a clear cut after its top_k."""
    if size.get("any_cut", False):
        return (draw.normal(num_rows, size["experts"]).float() + offset).to(draw.dtype)
    spares = 4
    offsets = offset.expand(num_rows, size["experts"]).repeat(spares, 1)
    logits = (draw.normal(*offsets.shape).float() + offsets).to(draw.dtype)
    best = logits.float().topk(size["top_k"] + 1, dim=-1).values
    is_clear = (best[:, -2] - best[:, -1] > MARGIN).view(spares, num_rows)
    # A row takes the place of the same row of another set, so that its offset still fits the mask.
    source = is_clear.long().argmax(dim=0) * num_rows + torch.arange(num_rows, device=draw.device)
    return logits[source]


def _parts(arguments: tuple[Any, ...]) -> tuple[list[torch.Tensor], int, torch.Tensor | None]:
    """Layers, top_k and mask of one rank."""
    logits, top_k = arguments[0], arguments[2] if len(arguments) > 2 else 2
    mask = arguments[3] if len(arguments) > 3 else None
    return [logits] if isinstance(logits, torch.Tensor) else list(logits), top_k, mask


def _statistics(layers: list[torch.Tensor], top_k: int, mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """f and P in float64. The mask has any number of elements a token, those of one layer after the other."""
    num_rows = layers[0].shape[0]
    ones = torch.ones(len(layers), num_rows, dtype=torch.float64, device=layers[0].device)
    # A mask of the tokens serves every layer; one of all rows is as it is.
    weights = ones if mask is None else ones * mask.double().reshape(-1, num_rows)
    f, P = (torch.zeros(layers[0].shape[1], dtype=torch.float64, device=ones.device) for _ in range(2))
    for logits, weight in zip(layers, weights, strict=True):
        powers = (logits.double() - logits.double().amax(dim=1, keepdim=True)).exp()
        P += (weight / powers.sum(dim=1)) @ powers
        best = logits.double().argsort(dim=1, descending=True, stable=True)[:, :top_k]
        f += torch.bincount(best.flatten(), weight.repeat_interleave(top_k), minlength=len(f))
    return f / weights.sum(), P / weights.sum()


def _loss(f: torch.Tensor, P: torch.Tensor) -> torch.Tensor:
    return len(f) * (f * P).sum()


def _turned(mask: torch.Tensor | None) -> torch.Tensor | None:
    return None if mask is None else mask.t()


def _each_repeated(mask: torch.Tensor | None, count: int) -> torch.Tensor | None:
    return None if mask is None else mask.flatten().repeat_interleave(count)
