"""Judge's side of importance_sampling_loss.

The baseline sends all sums in one collective and both extremes in another, where the published one makes seven. A
leak of ignored tokens (ratio 1) into an extreme shows only where all ratios lie on one side of 1: below in draws mod
4 = 2, above in draws mod 4 = 1, which have no clamped ratio e^-20 therefore. At ignored tokens the old log-probability
is drawn far away and must not matter. Besides the bounds on single tokens, log-probabilities, which have no outliers,
are judged by their norm, so that a smaller format is refused. Rounding to bf16 sums up to a few percent in a ratio.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from pkb.problems._check import Bound, Expected, Region, every, exact_values, relative, within
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

PROBLEM = Problem(
    number=25,
    group="loss",
    parallelism="dp",
    origin="token-level importance-sampling loss of LLM RL trainers (xorl, Tinker)",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"tokens": (3, 11), "hidden": 24, "vocab": 97},
        "tiny_flat": {"tokens": (41,), "hidden": 19, "vocab": 61},
        "base": {"tokens": (1024,), "hidden": 1024, "vocab": 32000},
        "large": {"tokens": (8192,), "hidden": 4096, "vocab": 128256},
    },
    check=within(Bound(rel=0.1, floor=2e-3, dtypes=("bf16",)), Bound(rel=2e-3, floor=1e-5, dtypes=("fp32",))),
)

STATISTICS = within(Bound(rel=0.1, dtypes=("bf16",)), Bound(rel=2e-3, dtypes=("fp32",)))
"""For each of the metrics alone."""

LOGPROBS = every(
    relative(bf16=1.5e-2, fp32=2e-3),
    within(Bound(rel=0.1, floor=2e-2, dtypes=("bf16",)), Bound(rel=2e-3, floor=1e-4, dtypes=("fp32",))),
)

LOGIT_STD = 2.5
CLAMP = 20.0
BLOCK_ELEMS = 2**25
"""So many logits exist at a time."""


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    tokens, vocab, index = size["tokens"], size["vocab"], draw.index
    num_tokens = prod(tokens)
    hidden = draw.normal(num_tokens, size["hidden"])
    weight = draw.normal(vocab, size["hidden"], scale=LOGIT_STD / size["hidden"] ** 0.5)
    labels, new = _sampled(draw, hidden, weight)
    # The share of ignored tokens is the rank's own; of the first four, one is ignored.
    ignored = draw.uniform(0.0, 1.0, num_tokens) < 0.15 + 0.2 * float(draw.uniform(0.0, 1.0))
    ignored[:2] = torch.tensor([True, False], device=draw.device)
    ignored[2:4] = False
    ignore_index = 5 if index % 3 == 2 else -100
    # A label that happens to be the ignored class is ignored too: these two may not be.
    labels[2:4] = torch.where(labels[2:4] == ignore_index, 6, labels[2:4])
    new[2:4] = _logprobs(hidden[2:4].float(), weight.float(), labels[2:4])
    if index % 4 == 3 and draw.rank == draw.world_size - 1:
        ignored.fill_(True)
    labels = torch.where(ignored, ignore_index, labels)
    noise = 0.8 * draw.normal(num_tokens).float()
    if index % 4 in (1, 2):
        # All ratios above 1, or all below.
        noise = (noise.abs() + 0.3) * (-1 if index % 4 == 1 else 1)
    old = new + torch.where(labels == ignore_index, 7 * noise, noise)
    if index % 4 != 1 and draw.rank == index % draw.world_size:
        old[2] = new[2] + 26
    if index % 2 == 1:
        old[3] = new[3] - 24
    advantages = 1 + draw.normal(num_tokens).float()
    arguments = (
        hidden.view(*tokens, -1),
        weight,
        labels.view(tokens),
        old.to(draw.dtype).view(tokens),
        advantages.to(draw.dtype).view(tokens),
    )
    return arguments if ignore_index == -100 and index % 2 == 0 else (*arguments, ignore_index)


@dataclass(frozen=True)
class Tokens:
    """Float64 values of the valid tokens of a rank, and which ones they are."""

    is_valid: torch.Tensor
    new: torch.Tensor
    difference: torch.Tensor
    """Delta before it is clamped."""
    delta: torch.Tensor
    rho: torch.Tensor
    advantages: torch.Tensor

    @property
    def pg(self) -> torch.Tensor:
        """Losses of the tokens."""
        return -self.rho * self.advantages

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """Values of the valid tokens in the shape of the labels, 0 elsewhere."""
        return torch.zeros_like(self.is_valid, dtype=torch.float64).masked_scatter(self.is_valid, values)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Any]:
    tokens = [_tokens(arguments) for arguments in inputs_of_all_ranks]
    return [_answer(one, *_statistics(tokens)) for one in tokens]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Seven float32 go to every peer. Logits never leave the chip; a label takes 8 bytes, and two floating numbers a
    # token are read and two written.
    num_tokens, hidden, vocab = prod(size["tokens"]), size["hidden"], size["vocab"]
    num_elems = (num_tokens + vocab) * hidden + 4 * num_tokens
    return Cost(
        link_bytes=28.0 * (world_size - 1),
        hbm_bytes=num_elems * dtype_bytes(dtype) + 8 * num_tokens + 24,
        flops=2.0 * num_tokens * hidden * vocab,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    tokens = [_tokens(arguments) for arguments in inputs_of_all_ranks]
    for name, changed in _wrong_tokens(tokens):
        yield name, [_answer(one, *_statistics(changed)) for one in changed]
    logprobs = []
    for arguments, one, want in zip(inputs_of_all_ranks, tokens, expected, strict=True):
        ignored, weight = ~one.is_valid, arguments[1].double()
        used = _logprobs(arguments[0][ignored].double(), weight, arguments[2][ignored] % len(weight))
        logprobs.append((*want[:2], one.spread(one.new).masked_scatter(ignored, used), *want[3:]))
    yield "ignored label used as an index", logprobs
    for name, changes in _wrong_statistics(tokens, is_wide=inputs_of_all_ranks[0][0].dtype == torch.float32):
        loss, metrics = _statistics(tokens)
        wrong = metrics.clone()
        for place, value in changes.items():
            wrong[place] = value
        yield name, [_answer(one, loss, wrong) for one in tokens]
    if len(expected) > 1:
        yield from _of_ranks(tokens)


def _wrong_tokens(tokens: list[Tokens]) -> Iterator[tuple[str, list[Tokens]]]:
    yield "ratio not clamped", [replace(one, delta=one.difference, rho=one.difference.exp()) for one in tokens]
    yield "clamped after exp", [replace(one, rho=one.difference.exp().clamp(-CLAMP, CLAMP)) for one in tokens]
    yield "ratio of old to new", [replace(one, delta=-one.delta, rho=(-one.delta).exp()) for one in tokens]
    yield "advantages left out", [replace(one, advantages=torch.ones_like(one.rho)) for one in tokens]
    yield "loss with the other sign", [replace(one, advantages=-one.advantages) for one in tokens]
    yield "cross entropy in place of log-probabilities", [replace(one, new=-one.new) for one in tokens]


def _wrong_statistics(tokens: list[Tokens], *, is_wide: bool) -> Iterator[tuple[str, dict[int, Any]]]:
    """Values of single metrics; ignored tokens and coarse sums as far as more than rounding must come of them."""
    rho = torch.cat([one.rho for one in tokens])
    num_ignored = sum(int((~one.is_valid).sum()) for one in tokens)
    if len(rho) == 0:
        return
    total = float(rho.sum())
    yield "extremes exchanged", {1: rho.max(), 2: rho.min()}
    if num_ignored > 0.15 * total:
        yield "ignored tokens in the sum of ratios", {0: (total + num_ignored) / len(rho)}
    if float(rho.max()) < 1:
        yield "ignored tokens in the maximum", {2: 1.0}
    if float(rho.min()) > 1:
        yield "ignored tokens in the minimum", {1: 1.0}
    if any(len(one.rho) == 0 for one in tokens):
        yield "minimum of a rank without tokens taken for 0", {1: 0.0}
    if is_wide:
        ce = torch.zeros((), dtype=torch.bfloat16)
        for one in torch.cat([one.new for one in tokens]).bfloat16():
            ce -= one
        right = -float(torch.cat([one.new for one in tokens]).sum())
        if abs(float(ce) / right - 1) > 5e-3:
            yield "cross entropy added up in bf16", {4: ce.double() / len(rho)}


def _of_ranks(tokens: list[Tokens]) -> Iterator[tuple[str, list[Any]]]:
    own = [_statistics([one]) for one in tokens]
    yield "own tokens alone", [_answer(one, *statistics) for one, statistics in zip(tokens, own, strict=True)]
    loss, metrics = _statistics(tokens)
    total = sum(len(one.rho) for one in tokens)
    is_mean = torch.tensor([True, False, False, True, True], device=metrics.device)
    local = []
    for one in tokens:
        factor = total / max(1, len(one.rho))
        local.append(_answer(one, _scaled(loss, factor), torch.where(is_mean, metrics * factor, metrics)))
    yield "divided by the number of own tokens", local
    means = torch.stack([torch.where(is_mean, of_rank, metrics) for _, of_rank in own]).mean(dim=0)
    mean_loss = replace(loss, value=torch.stack([of_rank.value for of_rank, _ in own]).mean())
    if bool(((means / metrics)[is_mean] - 1).abs().max() > 0.2):
        # Else the ranks have about as many valid tokens.
        yield "mean of the ranks' means", [_answer(one, mean_loss, means) for one in tokens]


def _tokens(arguments: tuple[Any, ...]) -> Tokens:
    hidden, weight, labels, old, advantages = arguments[:5]
    is_valid = labels != (arguments[5] if len(arguments) > 5 else -100)
    new = _logprobs(hidden[is_valid].double(), weight.double(), labels[is_valid])
    difference = new - old[is_valid].double()
    delta = difference.clamp(-CLAMP, CLAMP)
    return Tokens(is_valid, new, difference, delta, delta.exp(), advantages[is_valid].double())


def _statistics(tokens: Sequence[Tokens]) -> tuple[Expected, torch.Tensor]:
    """Loss, with its bound, and metrics of the tokens of some ranks together."""
    rho, delta, pg, new = (
        torch.cat(values) for values in zip(*((t.rho, t.delta, t.pg, t.new) for t in tokens), strict=True)
    )
    num_tokens = max(1, len(rho))
    nothing = rho.new_tensor([torch.inf, -torch.inf])
    minimum, maximum = (rho.amin(), rho.amax()) if len(rho) else nothing
    sums = [rho.sum(), (rho - delta - 1).sum(), -new.sum()]
    mean_rho, mean_gap, mean_ce = (one / num_tokens for one in sums)
    # Losses of both signs: the error of their sum is one of their size.
    scale = float(pg.abs().sum()) / num_tokens
    check = within(
        Bound(rel=0.1, floor=0.025 * scale, dtypes=("bf16",)), Bound(rel=2e-3, floor=5e-4 * scale, dtypes=("fp32",))
    )
    loss = Expected(pg.sum() / num_tokens, torch.float32, check)
    return loss, torch.stack((mean_rho, minimum, maximum, mean_gap, mean_ce))


def _answer(tokens: Tokens, loss: Expected, metrics: torch.Tensor) -> tuple[Any, ...]:
    ignored = (Region("ignored tokens", ~tokens.is_valid, exact_values()),)
    return (
        loss,
        None,
        Expected(tokens.spread(tokens.new), check=LOGPROBS, regions=ignored),
        Expected(tokens.spread(tokens.pg), regions=ignored),
        Expected(metrics, torch.float32, STATISTICS),
    )


def _scaled(loss: Expected, factor: float) -> Expected:
    return replace(loss, value=loss.value * factor)


def _sampled(draw: Draw, hidden: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A class for each row by its probability, and its log-probability: what a policy samples."""
    vocab, labels, logprobs = len(weight), [], []
    for rows in torch.split(hidden.float(), max(1, BLOCK_ELEMS // vocab)):
        logits = rows @ weight.float().t()
        # The largest of logit + Gumbel noise is a draw by softmax.
        noise = -(-draw.uniform(0.0, 1.0, *logits.shape).clamp_min(1e-30).log()).log()
        label = (logits + noise).argmax(dim=-1)
        labels.append(label)
        logprobs.append(_picked(logits, label) - logits.logsumexp(dim=-1))
    return torch.cat(labels), torch.cat(logprobs)


def _logprobs(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Log-probability of the label of each row, in the dtype of the operands."""
    num_rows = max(1, BLOCK_ELEMS // len(weight))
    found = [hidden.new_empty(0)]
    for rows, label in zip(torch.split(hidden, num_rows), torch.split(labels, num_rows), strict=True):
        logits = rows @ weight.t()
        found.append(_picked(logits, label) - logits.logsumexp(dim=-1))
    return torch.cat(found)


def _picked(logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return logits.take_along_dim(label.unsqueeze(-1), dim=-1).squeeze(-1)
