"""What the FP8 problems share: e4m3 rounding in arithmetic of its own, blocks of scales, delayed scaling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from pkb.problems._draw import Draw

MAX_CODE = 448.0
"""Largest e4m3 number; all that is below 464 rounds to it or to a smaller one."""

WINDOW = 16
"""Entries of a history of maxima."""

NEAR_TIES = 0.25
"""Share of float32 elements that are put close to the middle of two codes."""


def nearest_e4m3(x: torch.Tensor) -> torch.Tensor:
    """The nearest e4m3 numbers, ties to even, as float64; |x| below 464."""
    x = x.double()
    step = _step(x)
    return torch.round(x / step) * step


def cut_to_e4m3(x: torch.Tensor) -> torch.Tensor:
    """The same, but rounded towards zero: a near miss."""
    x = x.double()
    step = _step(x)
    return torch.trunc(x / step) * step


def quotient(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """x / scale as float32 has it, in float64: rounding a quotient in float64 once more changes nothing."""
    return (x.double() / scale.double()).float().double()


def in_blocks(x: torch.Tensor, block_size: int) -> torch.Tensor:
    """[..., n] as [..., n / block_size, block_size]."""
    return x.reshape(*x.shape[:-1], -1, block_size)


class RoundTrip(NamedTuple):
    """A tensor after quantization with delayed scaling, in float64 but for the history."""

    codes: torch.Tensor
    scale: torch.Tensor
    """0-dim."""
    new_history: torch.Tensor
    """In the dtype of the old one."""

    def values(self) -> torch.Tensor:
        """Codes times scale, rounded to float32."""
        return scaled(self.codes, self.scale)


def round_trip(x: torch.Tensor, history: torch.Tensor) -> RoundTrip:
    """Quantize with the maximum of the window that ends with x."""
    new_history = _next_history(x, history)
    scale = window_scale(new_history)
    return RoundTrip(nearest_e4m3(quotient(x, scale)), scale, new_history)


def window_scale(maxima: torch.Tensor) -> torch.Tensor:
    """max(largest, 1e-12) / 448 as float32 has it, float64."""
    return (maxima.double().max().clamp_min(1e-12).float().double() / MAX_CODE).float().double()


def scaled(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """codes * scale as float32 has it, float64."""
    return (codes * scale).float().double()


def delayed_inputs(draw: Draw, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A gradient or parameter shard [length] and its history of maxima [WINDOW], bf16.

    The spread is so wide that many values become subnormal codes or zero. Entry 0 of the history is the largest and
    has to be dropped; by draw and rank the scale comes from the shard, from the middle or from the end of the window.
    """
    spread = draw.normal(length).float().mul_(1.2).exp_()
    x = (draw.normal(length).float() * spread * (1 + draw.rank)).to(draw.dtype)
    x[(draw.index + draw.rank) % 17 :: 17] = 0
    peak = float(x.abs().max())
    history = 0.5 * draw.uniform(0.0, 1.0, WINDOW)
    history[0] = max(3e4, 4 * peak)
    source = (draw.index + draw.rank) % 3
    if source > 0:
        # No power of two: another scale would give the same numbers.
        place, floor, factor = ((5, 300.0, 1.7), (WINDOW - 1, 200.0, 1.4))[source - 1]
        history[place] = max(floor, factor * peak)
    history = history.bfloat16()
    if draw.dtype == torch.float32:
        x = _near_ties(draw, x, window_scale(_next_history(x, history)))
    return x, history


def wrong_round_trips(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """(name, what each rank would have after a wrong round trip), for pairs of a shard and its history."""
    right = [round_trip(x, history) for x, history in pairs]
    scales = [trip.scale for trip in right]

    def with_scales(others: list[torch.Tensor]) -> list[torch.Tensor]:
        return [_saturated(x, scale) for (x, _), scale in zip(pairs, others, strict=True)]

    cut = [scaled(cut_to_e4m3(quotient(x, scale)), scale) for (x, _), scale in zip(pairs, scales, strict=True)]
    yield "scale from the current maximum alone", with_scales([window_scale(x.abs().max()) for x, _ in pairs])
    yield "oldest entry counted", with_scales([window_scale(history) for _, history in pairs])
    yield "current maximum not counted", with_scales([window_scale(history[1:]) for _, history in pairs])
    yield "maximum of 240 in place of 448", [_limited(x, s) for (x, _), s in zip(pairs, scales, strict=True)]
    yield "quotient cut off, not rounded", cut
    yield "left in the working dtype", [x.double() for x, _ in pairs]
    yield "codes not scaled back", [trip.codes for trip in right]
    if len(pairs) > 1:
        yield "one scale for all ranks", with_scales([torch.stack(scales).max()] * len(pairs))
        yield "another rank's scale", with_scales(scales[-1:] + scales[:-1])


def coarse_round_trips(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    """The shards with quotients taken as products with a reciprocal in bf16."""
    found = []
    for x, history in pairs:
        scale = window_scale(_next_history(x, history))
        reciprocal = (1 / scale).bfloat16().double()
        found.append(scaled(nearest_e4m3((x.double() * reciprocal).clamp(-MAX_CODE, MAX_CODE)), scale))
    return found


def _near_ties(draw: Draw, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Some elements moved next to the middle of two codes: by more than float32 errs, by less than TF32 does."""
    numbers = torch.arange(127, dtype=torch.uint8, device=draw.device).view(torch.float8_e4m3fn).double()
    middles = (numbers[1:] + numbers[:-1]) / 2 * scale
    count = int((middles < 0.99 * x.abs().max()).sum())
    off = draw.uniform(2.0**-14, 2.0**-12, len(x)) * (draw.integers(0, 2, len(x)) * 2 - 1)
    moved = middles.float()[draw.integers(0, count, len(x))] * (1 + off)
    kept = (draw.uniform(0.0, 1.0, len(x)) >= NEAR_TIES) | (x == 0) | (x.abs() == x.abs().max())
    return torch.where(kept, x, moved.copysign(x))


def _saturated(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return scaled(nearest_e4m3(quotient(x, scale).clamp(-MAX_CODE, MAX_CODE)), scale)


def _limited(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return scaled(nearest_e4m3(quotient(x, scale).clamp(-240.0, 240.0)), scale)


def _step(x: torch.Tensor) -> torch.Tensor:
    """Distance of e4m3 numbers around x: three bits behind the first one, below 2^-6 as wide as there."""
    return torch.exp2((torch.frexp(x).exponent - 1).clamp_min(-6).double() - 3)


def _next_history(x: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
    return torch.cat((history[1:], x.abs().max().to(history.dtype).reshape(1)))
