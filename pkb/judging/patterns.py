"""Causes that the wrong elements themselves show: poison, zeros, inf and NaN, noise, one contiguous part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch

from pkb.judging.evidence import Evidence, Output, Region, locate, name_ranks
from pkb.judging.hypotheses import missing
from pkb.judging.scene import Scene
from pkb.records.verdict import Cause


@dataclass(frozen=True)
class Claim:
    """A cause, and what it says of each rank that it accounts for."""

    cause: Cause
    says: dict[int, str]
    """A clause for each rank, in which `<rank>` stands for the ranks that share it."""
    share: float = 1.0
    """Share of the first failing rank's wrong elements that it accounts for."""
    coverage: float = 1.0
    """Share of the elements in which it would show that do show it."""
    quality: float = 0.0
    """For choosing among claims: larger is better."""

    def is_complete(self, num_ranks: int) -> bool:
        """It accounts for everything, on all of the failing ranks."""
        return self.share >= 0.99 and self.coverage >= 0.95 and len(self.says) == num_ranks


class _Blank(Enum):
    """What stands in elements that hold no proper value; the text follows `is` or `are`."""

    POISON = "not written (0xFF poison, NaN in a floating dtype)"
    NAN = "NaN: not written, or computed from memory that was not written"
    NONFINITE = "not finite"
    ZERO = "zero"


@dataclass(frozen=True)
class _Blanks:
    """The improper elements of one rank."""

    evidence: Evidence
    kind: _Blank
    marks: list[torch.Tensor]
    """Which elements of each wrong output they are."""


def blanks(scene: Scene, evidence: Sequence[Evidence]) -> Claim | None:
    """Name what was never written, whole zero outputs and values that are not finite."""
    found = [one for e in evidence if (one := _blanks_of(e)) is not None]
    if not found or found[0].evidence is not evidence[0]:
        return None
    kind = found[0].kind
    found = [one for one in found if one.kind is kind]
    if kind is _Blank.NONFINITE:
        return Claim(Cause.NONFINITE, {one.evidence.rank: _nonfinite_words(one) for one in found})
    if kind is _Blank.ZERO and found[0].evidence.num_wrong < 4:
        # So few zeros may be the result of another mistake.
        return None
    if kind is _Blank.ZERO and _is_all_zero(found[0].evidence):
        whole = [one for one in found if _is_all_zero(one.evidence)]
        return Claim(Cause.ZEROS, {one.evidence.rank: "the whole output is zero" for one in whole})
    return _missing_parts(scene, found) or _unwritten(found)


def leftover_zeros(evidence: Sequence[Evidence]) -> Claim | None:
    """Zeros that form no part of the output, or are few, when nothing else explains them."""
    found = [one for e in evidence if (one := _blanks_of(e)) is not None and one.kind is _Blank.ZERO]
    if not found or found[0].evidence is not evidence[0]:
        return None
    cause = Cause.ZEROS if _is_all_zero(found[0].evidence) else Cause.UNWRITTEN
    return Claim(cause, {one.evidence.rank: f"{_where(one)} left zero" for one in found})


def wrong_part(evidence: Sequence[Evidence]) -> Claim | None:
    """A suffix or a block that is wrong while the rest is right."""
    says = {}
    for e in evidence:
        region = locate(e.outputs[0].marks)
        if region.is_part and len(e.outputs) == 1:
            says[e.rank] = f"{region.text} are wrong and the rest is right, as if they were not written"
    return Claim(Cause.UNWRITTEN, says) if evidence[0].rank in says else None


def factor(evidence: Evidence) -> float | None:
    """The constant that brings the expected values nearest to the wrong ones; None if it is near 0 or 1."""
    output = evidence.outputs[0]
    got, want = output.values_wrong
    square = float(want.square().sum())
    if not square > 0.0 or not math.isfinite(square):
        return None
    best = float((got * want).sum()) / square
    return best if math.isfinite(best) and abs(best) > 1e-3 and abs(best - 1) > 1e-3 else None


def noise(evidence: Sequence[Evidence]) -> Claim | None:
    """Small errors all over the output, as a format of fewer bits would make."""
    says = {e.rank: words for e in evidence if (words := _noise_words(e.outputs[0]))}
    return Claim(Cause.PRECISION, says) if evidence[0].rank in says else None


def _blanks_of(evidence: Evidence) -> _Blanks | None:
    odd = [o.bad & ~(_finite(o.got) & _finite(o.want)) for o in evidence.outputs]
    outputs = list(zip(evidence.outputs, odd, strict=True))
    num_odd = sum(int(marks.sum()) for marks in odd)
    if num_odd:
        whole = all(locate(marks).kind != "scattered" for _, marks in outputs if bool(marks.any()))
        is_poison = sum(int((marks & _poison(o.got)).sum()) for o, marks in outputs) >= 0.95 * num_odd
        # Rounding to bf16 on the CPU makes a NaN of all bits, too: what is not written forms a part, or most of a rank.
        if is_poison and whole:
            return _Blanks(evidence, _Blank.POISON, odd)
        num_nan = sum(int((marks & torch.isnan(_plain(o.got))).sum()) for o, marks in outputs)
        part = all(locate(marks).is_part for _, marks in outputs if bool(marks.any()))
        kind = _Blank.NAN if num_nan == num_odd and part else _Blank.NONFINITE
        return _Blanks(evidence, kind, odd)
    bad = [o.bad for o in evidence.outputs]
    if all(bool(_poison(o.got)[o.bad].all()) for o in evidence.outputs):
        return _Blanks(evidence, _Blank.POISON, bad)
    if all(bool((_plain(o.got)[o.bad] == 0).all()) for o in evidence.outputs):
        return _Blanks(evidence, _Blank.ZERO, bad)
    return None


def _missing_parts(scene: Scene, found: Sequence[_Blanks]) -> Claim | None:
    """Blank elements that are just those which some ranks' data should have filled."""
    absent = {one.evidence.rank: ranks for one in found if (ranks := _absent_ranks(scene, one))}
    if found[0].evidence.rank not in absent:
        return None
    size, words = scene.world_size, found[0].kind.value
    only_own = all(ranks == set(range(size)) - {rank} for rank, ranks in absent.items())
    if only_own and (size > 2 or len(absent) == size):
        says = dict.fromkeys(absent, f"only the rank's own part is there; the parts of its peers are {words}")
        return Claim(Cause.OWN_DATA_ONLY, says)
    says = {
        rank: f"the data of {name_ranks(sorted(ranks))} are missing: their part of the output is {words}"
        for rank, ranks in absent.items()
    }
    return Claim(Cause.MISSING_RANK, says)


def _absent_ranks(scene: Scene, one: _Blanks) -> set[int]:
    """The ranks whose data would have filled the blank elements and no others; empty if there are none."""
    if scene.world_size == 1:
        return set()
    evidence, ranks = one.evidence, set()
    blank = _sampled(evidence, one.marks)
    filled = torch.zeros_like(blank)
    for s, hypothesis in missing(scene):
        answer = hypothesis.answer(scene, evidence.rank)
        if answer is None or any(o.path not in answer for o in evidence.outputs):
            continue
        if any(answer[o.path].shape != o.want.shape for o in evidence.outputs):
            continue
        depends = _sampled(evidence, [answer[o.path].double() != o.want.double() for o in evidence.outputs])
        num = int(depends.sum())
        # A part that is the whole output says nothing of where data come from.
        if num == 0 or num >= 0.95 * len(depends) or int((depends & blank).sum()) < 0.98 * num:
            continue
        ranks.add(evidence.rank if s is None else s)
        filled |= depends
    return ranks if int((filled & blank).sum()) >= 0.95 * int(blank.sum()) else set()


def _sampled(evidence: Evidence, marks: Sequence[torch.Tensor]) -> torch.Tensor:
    both = zip(evidence.outputs, marks, strict=True)
    return torch.cat([m.flatten()[o.anywhere.to(m.device)].cpu() for o, m in both])


def _unwritten(found: Sequence[_Blanks]) -> Claim | None:
    if found[0].kind is _Blank.ZERO:
        found = [one for one in found if _region(one).is_part]
        if not found:
            return None
    says = {}
    for one in found:
        words = "left zero" if one.kind is _Blank.ZERO else one.kind.value
        says[one.evidence.rank] = f"{_where(one)} {words}"
    return Claim(Cause.UNWRITTEN, says)


def _where(one: _Blanks) -> str:
    """The region of the first output with blanks, with a verb."""
    text = _region(one).text
    return f"{text} {'is' if text == 'the only element' else 'are'}"


def _region(one: _Blanks) -> Region:
    """Where the first output with blanks has them, a complex number being one element."""
    both = zip(one.evidence.outputs, one.marks, strict=True)
    output, marks = next((o, m) for o, m in both if bool(m.any()))
    # A zero where about zero is expected is not wrong, and yet as blank as its neighbors.
    alike = _plain(output.got) == 0 if one.kind is _Blank.ZERO else marks
    if output.is_complex:
        marks, alike = marks.any(dim=-1), alike.all(dim=-1)
    return locate(marks, alike)


def _nonfinite_words(one: _Blanks) -> str:
    num_nan = num_inf = num_finite = 0
    for output, marks in zip(one.evidence.outputs, one.marks, strict=True):
        got = _plain(output.got)[marks]
        num_nan += int(torch.isnan(got).sum())
        num_inf += int(torch.isinf(got).sum())
        num_finite += int(torch.isfinite(got).sum())
    words = [f"{n} {what}" for n, what in ((num_nan, "NaN"), (num_inf, "infinite")) if n]
    if num_finite:
        words.append(f"{num_finite} finite where infinite or NaN is expected")
    return f"not finite or wrongly finite: {' and '.join(words)}; {_region(one).text}"


def _is_all_zero(evidence: Evidence) -> bool:
    return all(bool((_plain(output.got) == 0).all()) for output in evidence.outputs)


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    return torch.isfinite(_plain(tensor))


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """8-bit floats as float32, since few operators know them."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def _poison(tensor: torch.Tensor) -> torch.Tensor:
    """Which elements have every bit set, as the judge leaves memory before a call."""
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.contiguous().view(integer) == (255 if tensor.element_size() == 1 else -1)


_FORMATS = {1: "fp4 e2m1", 2: "fp8 e5m2", 3: "fp8 e4m3", 7: "bf16", 10: "fp16 or tf32"}
"""Formats by the bits of their mantissa."""


def _noise_words(output: Output) -> str:
    """What the errors of an output say about the precision of its computation; empty if they are no noise."""
    if not output.got.is_floating_point():
        return ""
    got, want = output.values_anywhere
    diff, norm = got - want, float(want.norm())
    if norm == 0.0 or not bool(torch.isfinite(diff).all()):
        return ""
    error = float(diff.norm()) / norm
    small = diff.abs() <= 0.5 * (want.abs() + output.rms)
    if not 0.0 < error < 0.2 or float(small.float().mean()) < 0.99 or not _is_everywhere(diff, error * output.rms):
        return ""
    slope = float((got * want).sum()) / norm**2 - 1
    bias = f", biased {'toward' if slope < 0 else 'away from'} zero" if abs(slope) > 0.5 * error else ", unbiased"
    words = _bits_words(output.got, got, error)
    return f"small errors all over the output (about {error:.1g} of its norm{bias}): {words}"


def _is_everywhere(diff: torch.Tensor, typical: float) -> bool:
    """Whether errors are of like size in all parts of the output."""
    if len(diff) < 64:
        return float((diff != 0).float().mean()) >= 0.5
    # In parts of a few elements chance makes the difference.
    parts = torch.stack([part.square().mean().sqrt() for part in diff.chunk(min(16, len(diff) // 32))])
    return bool((parts > 0.2 * typical).all() and (parts < 5 * typical).all())


def _bits_words(raw: torch.Tensor, got: torch.Tensor, error: float) -> str:
    """The format whose rounding would make such an error, from the values themselves where they show it."""
    own = int(-math.log2(torch.finfo(raw.dtype).eps))
    mantissas = torch.frexp(got[got != 0]).mantissa
    for bits, name in _FORMATS.items():
        scaled = mantissas * 2.0 ** (bits + 1)
        if bits < own and float((scaled == scaled.round()).float().mean()) >= 0.99:
            return f"every value has at most {bits} mantissa bits, as if rounded to {name}"
    # Rounding to m bits costs about 0.2 * 2^-m of the norm; rounding both factors of a product 1.4 times
    # that.
    effective = math.log2(0.2 / error)
    bits = math.ceil(effective - 0.3)
    about = f"about {max(round(2 * effective) / 2, 0.0):g} effective mantissa bits"
    if bits in _FORMATS:
        return f"{about}, as if rounded to {_FORMATS[bits]} ({bits} mantissa bits) on the way"
    if 3 < bits < 7:
        return f"{about}, as if sums were accumulated in bf16 (7 mantissa bits)"
    return f"{about}, where {raw.dtype} has {own}".replace("torch.", "")
