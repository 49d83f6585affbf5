"""Naming the most plausible reason of a wrong result, with the evidence for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from pkb.judging import patterns
from pkb.judging.evidence import Evidence, Match, Rules, collect, flatten, locate, name_ranks, unravel
from pkb.judging.hypotheses import Hypothesis, all_of, families, known_mistakes, measured_scaling, mixtures, scalings
from pkb.judging.patterns import Claim
from pkb.judging.scene import Budget, Call, Scene
from pkb.problems._check import Check, Comparison, ExactFloats, Finding, compare_ranks
from pkb.problems._spec import Dtype, Judgeside, Problem
from pkb.problems._tree import tensors
from pkb.records.errors import HarnessError
from pkb.records.verdict import Cause, Mismatch

__all__ = ["Call", "Explanation", "check_for", "compare_call", "explain"]

_ENOUGH = 0.95
"""Share of the wrong elements that an explanation has to account for."""
_THIN = 4
"""With fewer wrong elements a hypothesis may fit by chance, so other calls have to bear it out."""


@dataclass(frozen=True)
class Explanation:
    """The most plausible reason of a wrong result."""

    cause: Cause
    detail: str
    """What went wrong, then the evidence: output, ranks, call, index, got, expected, count."""
    mismatch: Mismatch | None
    """First wrong element of the first failing rank; None if container, dtype or shape are wrong."""


def check_for(problem: Problem, exact: bool) -> Check:
    """The check of a trial: in exact trials every value of a float64 truth must be right."""
    return ExactFloats(problem.check) if exact else problem.check


def compare_call(problem: Problem, call: Call, dtype: Dtype) -> list[Comparison]:
    """Compare one call's results with the truth and, where the problem says so, with each other; by rank."""
    check = check_for(problem, call.exact)
    # Some arguments may be on the host; where one is not, results are not either.
    device = max((t.device.type for t in tensors(call.inputs)), key=lambda kind: kind != "cpu", default=None)
    return compare_ranks(check, call.got, call.want, dtype, agree=problem.agree, device=device)


def explain(
    problem: Problem,
    code: Judgeside,
    calls: Sequence[Call],
    failing: int,
    dtype: Dtype,
    reruns: Sequence[Sequence[Call]] = (),
) -> Explanation:
    """Compare a wrong result with plausible wrong answers and name the one that fits.

    Args:
        problem: what was to be computed.
        code: its oracle and near misses.
        calls: all calls of one trial, in order; they ran back to back.
        failing: index of the first call with a wrong result.
        dtype: working dtype.
        reruns: the same trial run again on identical inputs; they tell races apart.

    Raises:
        HarnessError: the results of that call are right.
    """
    case = _Case(problem, code, calls, failing, dtype)
    if case.structural:
        return _structural(case)
    if not case.evidence:
        rank, finding = case.first_finding
        cause = Cause.RANKS_DIFFER if finding.kind == "agreement" else Cause.UNKNOWN
        return Explanation(cause, f"{finding.output} on rank {rank}, {case.where}: {finding.detail}.", None)
    claim = patterns.blanks(case.scene, case.evidence) or _best_hypothesis(case) or _by_shape(case)
    unsteady = _disagreement(case, reruns)
    cause = claim.cause
    if unsteady and _is_never_written(case, reruns):
        unsteady = ""
        if cause not in (Cause.UNWRITTEN, Cause.MISSING_RANK, Cause.OWN_DATA_ONLY):
            says = "the same elements differ from run to run and are right in none, as if they were not written"
            claim, cause = Claim(Cause.UNWRITTEN, {e.rank: says for e in case.evidence}), Cause.UNWRITTEN
    if unsteady and cause not in (Cause.STALE, Cause.OVERWRITTEN):
        cause = Cause.RACE
    return Explanation(cause, _detail(case, claim, unsteady, cause), _mismatch(case.evidence[0]))


class _Case:
    """A failing call with its comparisons, worked out as far as they are asked for."""

    def __init__(self, problem: Problem, code: Judgeside, calls: Sequence[Call], at: int, dtype: Dtype) -> None:
        self.calls, self.at, self.call = calls, at, calls[at]
        self._problem, self._code, self._dtype = problem, code, dtype
        self.budget = Budget()
        self.scene = Scene(problem, code, calls, at, self.budget)
        self.comparisons = self._compare(self.call)
        self.evidence = self._collect(self.call, self.comparisons)
        if all(comparison.passed for comparison in self.comparisons):
            raise HarnessError(f"call {at} of {problem.id} was to be explained, but its results are right")

    @property
    def structural(self) -> list[tuple[int, Finding]]:
        """Findings on container, dtype or shape with their ranks."""
        form = ("container", "dtype", "shape")
        return [(rank, finding) for rank, finding in self._findings() if finding.kind in form]

    @property
    def first_finding(self) -> tuple[int, Finding]:
        """The first finding of the first failing rank."""
        return next(self._findings())

    @property
    def where(self) -> str:
        """Names the call within its trial."""
        return f"call {self.at} (of calls 0 to {len(self.calls) - 1}, size {self.call.size})"

    def rules(self, call: Call) -> Rules:
        """How close values have to be in a call of this trial."""
        return Rules(check_for(self._problem, call.exact), self._dtype, call.exact)

    @cached_property
    def other_failures(self) -> dict[int, tuple[Scene, dict[int, Evidence]]]:
        """Up to three other calls that fail, later ones first, with the evidence of their ranks."""
        found: dict[int, tuple[Scene, dict[int, Evidence]]] = {}
        for at in (*range(self.at + 1, len(self.calls)), *range(self.at)):
            evidence = self._collect(self.calls[at], self._compare(self.calls[at]))
            if evidence:
                scene = Scene(self._problem, self._code, self.calls, at, self.budget)
                found[at] = scene, {e.rank: e for e in evidence}
            if len(found) == 3:
                break
        return found

    def _findings(self) -> Iterator[tuple[int, Finding]]:
        for rank, comparison in enumerate(self.comparisons):
            for finding in comparison.findings:
                yield rank, finding

    def _compare(self, call: Call) -> list[Comparison]:
        return compare_call(self._problem, call, self._dtype)

    def _collect(self, call: Call, comparisons: Sequence[Comparison]) -> list[Evidence]:
        rules = self.rules(call)
        each = (
            collect(rank, comparison, call.got[rank], call.want[rank], rules)
            for rank, comparison in enumerate(comparisons)
            if not comparison.passed
        )
        return [evidence for evidence in each if evidence is not None]


def _structural(case: _Case) -> Explanation:
    finding = case.structural[0][1]
    ranks = [r for r, other in case.structural if (other.output, other.detail) == (finding.output, finding.detail)]
    causes = {"container": Cause.CONTAINER, "dtype": Cause.DTYPE, "shape": Cause.SHAPE}
    detail = f"The result has the wrong {finding.kind}: {finding.output} on {name_ranks(ranks)}, {case.where}:"
    return Explanation(causes[finding.kind], f"{detail} {finding.detail}.", None)


def _best_hypothesis(case: _Case) -> Claim | None:
    """The claim that explains most; the search ends with the first one that leaves nothing open."""
    best: Claim | None = None
    for family in _all_families(case):
        claim = _claim_of(case, family)
        if claim is not None and (best is None or claim.quality > best.quality + 0.02):
            best = claim
        if best is not None and best.is_complete(len(case.evidence)):
            return best
    directions = [-1, 1] if best is None else [-1] if best.cause is Cause.STALE else [1]
    if best is None or best.cause in (Cause.STALE, Cause.OVERWRITTEN):
        for claim in filter(None, (_mixture(case, direction) for direction in directions)):
            if best is None or claim.quality > best.quality + 0.02:
                best = claim
    return best


def _all_families(case: _Case) -> Iterator[list[Hypothesis]]:
    for number, family in enumerate(families(case.scene, [e.rank for e in case.evidence])):
        yield family
        if number == 0:
            yield scalings(case.scene)
    # Any factor at all says less than a known mistake.
    yield measured_scaling(case.scene, patterns.factor(case.evidence[0]))


def _claim_of(case: _Case, family: Sequence[Hypothesis]) -> Claim | None:
    """What the members of one family say about the failing ranks; None unless one fits the first of them."""
    first, *others = case.evidence
    best = _fitting(case, family, first)
    if best is None:
        return None
    hypothesis, match = best
    says = {first.rank: hypothesis.says}
    for evidence in others:
        again = _fitting(case, [hypothesis], evidence) or _fitting(case, family, evidence)
        if again is not None:
            says[evidence.rank] = again[0].says
    explained = len(says) / len(case.evidence)
    return Claim(hypothesis.cause, says, match.share, match.coverage, match.share + match.coverage + explained)


def _fitting(case: _Case, family: Sequence[Hypothesis], evidence: Evidence) -> tuple[Hypothesis, Match] | None:
    """The member that fits a rank's wrong elements; of several, the one that predicts them most closely."""
    best: tuple[Hypothesis, Match] | None = None
    for hypothesis in family:
        match = _fit(hypothesis, case.scene, evidence)
        if match is None or (best is not None and match.coverage <= best[1].coverage):
            continue
        if _is_borne_out(case, hypothesis, evidence):
            best = hypothesis, match
            if match.coverage >= 0.99 and match.share >= 0.99:
                break
    return best


def _fit(hypothesis: Hypothesis, scene: Scene, evidence: Evidence) -> Match | None:
    if evidence.num_wrong < hypothesis.min_elems:
        return None
    answer = hypothesis.answer(scene, evidence.rank)
    match = None if answer is None else evidence.match(answer)
    if match is None or match.share < _ENOUGH or match.residual > hypothesis.residual:
        return None
    # A few elements fit many an answer by chance: then it must be right about the other elements too.
    least = 0.9 if evidence.num_wrong < _THIN else hypothesis.coverage
    return match if match.coverage >= least else None


def _is_borne_out(case: _Case, hypothesis: Hypothesis, evidence: Evidence) -> bool:
    """Whether other calls agree, where that has to be asked."""
    if not hypothesis.every_call and evidence.num_wrong >= _THIN:
        return True
    fits = {
        at: _fit(hypothesis, scene, others[evidence.rank]) is not None
        for at, (scene, others) in case.other_failures.items()
        if evidence.rank in others
    }
    if hypothesis.every_call:
        alike = range(case.at + 1, min(case.at + 4, len(case.calls)))
        later = [at for at in alike if case.calls[at].size == case.call.size]
        return len(later) > 0 and all(fits.get(at, False) for at in later)
    return any(fits.values()) or not fits


def _mixture(case: _Case, direction: int) -> Claim | None:
    """Wrong elements that each come from data of another call, but of several ranks."""
    options = mixtures(case.scene, direction)
    found = {
        evidence.rank: union
        for evidence in case.evidence
        if evidence.num_wrong >= 4 * _THIN and (union := _union(case.scene, evidence, options)) is not None
    }
    first = case.evidence[0]
    if first.rank not in found:
        return None
    cause = Cause.STALE if direction < 0 else Cause.OVERWRITTEN
    whole = all_of(case.scene, direction, found[first.rank][0])
    if _fit(whole, case.scene, first) is not None:
        return _claim_of(case, [all_of(case.scene, direction, ranks) for ranks, _ in found.values()])
    says = {
        rank: f"each wrong element has the data of one or more of {name_ranks(ranks)} from {options[0][1].says}"
        for rank, (ranks, _) in found.items()
    }
    share = found[first.rank][1]
    return Claim(cause, says, share, quality=share)


def _union(
    scene: Scene, evidence: Evidence, options: Sequence[tuple[tuple[int, ...], Hypothesis]]
) -> tuple[list[int], float] | None:
    """Ranks and share of the wrong elements explained by any of the options; None if too few are."""
    covered: torch.Tensor | None = None
    ranks: set[int] = set()
    for subset, hypothesis in options:
        # Larger sets cost many oracle calls: only where the single ranks have shown that it is worth it.
        if len(subset) == 2 and (covered is None or float(covered.float().mean()) < 0.25):
            return None
        answer = hypothesis.answer(scene, evidence.rank)
        match = None if answer is None else evidence.match(answer)
        # An answer that is the expected one where others are wrong by an ulp explains nothing.
        if match is None or match.residual > hypothesis.residual:
            continue
        hits = match.hits if covered is None else match.hits & ~covered
        covered = match.hits if covered is None else covered | match.hits
        # A hit on one element in fifty may be chance.
        if float(hits.float().mean()) > 0.02:
            ranks |= set(subset)
        if float(covered.float().mean()) >= 0.99:
            break
    share = 0.0 if covered is None else float(covered.float().mean())
    return (sorted(ranks), share) if share >= _ENOUGH and ranks else None


def _by_shape(case: _Case) -> Claim:
    """What can be said when no other answer fits: noise, a part of the output, or only where it is wrong."""
    return (
        patterns.leftover_zeros(case.evidence)
        or patterns.noise(case.evidence)
        or patterns.wrong_part(case.evidence)
        or Claim(Cause.UNKNOWN, {e.rank: "no plausible wrong answer that was tried fits" for e in case.evidence})
    )


def _disagreement(case: _Case, reruns: Sequence[Sequence[Call]]) -> str:
    """A clause on how runs on identical inputs differ; empty if they agree up to rounding."""
    differing = [place for again in reruns if (place := _first_difference(case, again))]
    if not differing:
        return ""
    counts = f"{len(differing)} of {len(reruns)} reruns"
    return f"{counts} on identical inputs gave another result, first {differing[0]}"


def _first_difference(case: _Case, again: Sequence[Call]) -> str:
    for at, (before, after) in enumerate(zip(case.calls, again, strict=False)):
        rules = case.rules(before)
        for rank, (one, two) in enumerate(zip(before.got, after.got, strict=True)):
            ours, theirs = flatten(one), flatten(two)
            if ours.keys() != theirs.keys():
                return f"in its container on rank {rank}, call {at}"
            for path in ours:
                count = _num_different(ours[path], theirs[path], rules)
                if count:
                    return f"in {count} of {ours[path].numel()} elements of {path} on rank {rank}, call {at}"
    return ""


def _is_never_written(case: _Case, reruns: Sequence[Sequence[Call]]) -> bool:
    """Whether runs differ only in elements that no run has right, beside others that all have right.

    What a race leaves is right in some run; memory that nobody writes never is.
    """
    num_right = 0
    for again in reruns:
        for before, after in zip(case.calls, again, strict=False):
            rules = case.rules(before)
            for one, two, want in zip(before.got, after.got, before.want, strict=True):
                ours, theirs, truths = flatten(one), flatten(two), flatten(want)
                for path, truth in truths.items():
                    a, b = ours.get(path), theirs.get(path)
                    if a is None or b is None or not a.shape == b.shape == truth.shape:
                        return False
                    other = _different(a, b, rules)
                    right = ~_different(a, truth.to(a.dtype), rules), ~_different(b, truth.to(b.dtype), rules)
                    if bool((other & (right[0] | right[1])).float().sum() > 0.02 * other.sum()):
                        return False
                    num_right += int((right[0] & right[1]).sum()) if bool(other.any()) else 0
    return num_right > 0


def _num_different(one: torch.Tensor, two: torch.Tensor, rules: Rules) -> int:
    if one.shape != two.shape:
        return max(one.numel(), two.numel())
    return int(_different(one, two, rules).sum())


def _different(one: torch.Tensor, two: torch.Tensor, rules: Rules) -> torch.Tensor:
    """Which elements differ by more than rounding."""
    a, b = one.double(), two.double()
    same = (a == b) | (torch.isnan(a) & torch.isnan(b))
    slack = rules.slack(one.dtype)
    if slack > 0.0:
        finite = torch.where(torch.isfinite(a), a, 0.0)
        rms = float(finite.square().mean().sqrt()) if a.numel() else 0.0
        same |= (a - b).abs() <= slack * (a.abs() + rms)
    return ~same


def _detail(case: _Case, claim: Claim, unsteady: str, cause: Cause) -> str:
    sentences = []
    told = _told(claim.says)
    if cause is Cause.RACE:
        sentences.append(f"A race: {unsteady}. In this run: {told}.")
    else:
        sentences.append(f"{told[0].upper()}{told[1:]}.")
        if unsteady:
            sentences.append(f"It depends on timing: {unsteady}.")
    known = _known_mistake(case, claim)
    if known:
        sentences.append(f"That is a known mistake: {known}.")
    rest = [evidence.rank for evidence in case.evidence if evidence.rank not in claim.says]
    if rest:
        sentences.append(f"The result on {name_ranks(rest)} is wrong in another way.")
    if claim.coverage < 0.9:
        sentences.append(f"This is so in about {claim.coverage:.0%} of the elements where it would show.")
    if claim.cause is Cause.UNKNOWN and case.budget.was_spent:
        sentences.append("Not every hypothesis was tried: the oracle takes too long at this size.")
    if claim.share < 1.0:
        sentences.append(f"It accounts for {claim.share:.1%} of the wrong elements.")
    num_wrong = case.evidence[0].num_wrong
    if claim.quality > 0.0 and num_wrong < _THIN and not case.other_failures:
        sentences.append(f"Only {num_wrong} wrong {'element speaks' if num_wrong == 1 else 'elements speak'} for it.")
    return " ".join([*sentences, _evidence(case, claim)])


def _known_mistake(case: _Case, claim: Claim) -> str:
    """Name of the problem's near miss that another claim amounts to; empty if there is none."""
    if claim.cause not in (Cause.SCALED, Cause.OWN_DATA_ONLY, Cause.PERMUTED_RANKS, Cause.UNWRITTEN):
        return ""
    for hypothesis in known_mistakes(case.scene):
        fits = [_fit(hypothesis, case.scene, evidence) for evidence in case.evidence]
        if all(match is not None and match.coverage >= 0.9 for match in fits):
            return hypothesis.says.partition(": ")[2]
    return ""


def _told(says: Mapping[int, str]) -> str:
    """Clauses with the ranks that each is about, unless one is about all."""
    by_clause: dict[str, list[int]] = {}
    for rank, clause in says.items():
        by_clause.setdefault(clause, []).append(rank)
    words = []
    for clause, ranks in by_clause.items():
        is_named = len(by_clause) == 1 or "<rank>" in clause
        words.append(clause.replace("<rank>", name_ranks(ranks)) if is_named else f"on {name_ranks(ranks)} {clause}")
    return "; ".join(words)


def _evidence(case: _Case, claim: Claim) -> str:
    first = _mismatch(case.evidence[0])
    ranks = [evidence.rank for evidence in case.evidence]
    count = f"{first.wrong_elems} of {first.total_elems} elements"
    region = locate(case.evidence[0].outputs[0].marks)
    is_told = region.kind != "all" and (claim.cause is Cause.UNKNOWN or claim.coverage < 0.9)
    where = region.text if is_told else count
    finding = case.first_finding[1].detail
    error = f" ({finding})" if claim.cause in (Cause.UNKNOWN, Cause.PRECISION) and finding else ""
    at = f"at {list(first.index)} " if first.index else ""
    return (
        f"Wrong: {first.output} on {name_ranks(ranks)} of {case.scene.world_size}, {case.where}; first {at}on"
        f" rank {first.rank}: got {first.got}, expected {first.expected};"
        f" {where if count in where else f'{count}, {where}'}{error}."
    )


def _mismatch(evidence: Evidence) -> Mismatch:
    output = evidence.outputs[0]
    place = int(output.marks.flatten().int().argmax())
    return Mismatch(
        rank=evidence.rank,
        output=output.path,
        index=unravel(place, output.marks.shape),
        got=output.shown(output.got, place),
        expected=output.shown(output.want, place),
        wrong_elems=output.num_wrong,
        total_elems=output.num_total,
    )
