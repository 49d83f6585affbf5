"""One random draw of a rank's inputs: who draws, in which dtype, from which generators."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pkb.problems._spec import Dtype, torch_dtype


@dataclass(frozen=True)
class Draw:
    """What `inputs` of a problem draws from.

    Shared draws come out equal on all ranks only if every rank makes them in the same order: never put one
    behind a condition on the rank.
    """

    rank: int
    world_size: int
    dtype: torch.dtype
    """Working dtype of floating arguments."""
    index: int
    """Number of this draw in the run, from 0; roots, empty splits and the like change with it."""
    exact: bool
    """True in exact trials: draw integers so small that every partial sum is exact in bf16."""
    rng: torch.Generator
    """This rank's own generator; its device is where the inputs belong."""
    shared_rng: torch.Generator
    """A generator in the same state on every rank."""

    @property
    def device(self) -> torch.device:
        """Where the arguments belong."""
        return self.rng.device

    def normal(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """N(0, scale^2) of this rank, drawn in float32 and rounded to the working dtype."""
        return self._normal(shape, self.rng).mul_(scale).to(self.dtype)

    def shared_normal(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """N(0, scale^2), equal on all ranks, rounded to the working dtype."""
        return self._normal(shape, self.shared_rng).mul_(scale).to(self.dtype)

    def uniform(self, low: float, high: float, *shape: int) -> torch.Tensor:
        """Uniform in [low, high) of this rank, float32 (cast it yourself)."""
        return self._uniform(low, high, shape, self.rng)

    def shared_uniform(self, low: float, high: float, *shape: int) -> torch.Tensor:
        """Uniform in [low, high), equal on all ranks, float32 (cast it yourself)."""
        return self._uniform(low, high, shape, self.shared_rng)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Integers in [low, high) of this rank, int64."""
        return torch.randint(low, high, shape, generator=self.rng, device=self.device)

    def shared_integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Integers in [low, high), equal on all ranks, int64."""
        return torch.randint(low, high, shape, generator=self.shared_rng, device=self.device)

    def exact_terms(self, *shape: int) -> torch.Tensor:
        """Integers in [-15, 15] of this rank in the working dtype: sums of up to 17 are exact in bf16."""
        return self.integers(-15, 16, *shape).to(self.dtype)

    def exact_factors(self, *shape: int, num_terms: int) -> torch.Tensor:
        """Sparse entries in {-1, 0, 1}, non-zero with probability min(1, 32 / sqrt(num_terms)).

        `num_terms` counts all products that one result element sums, over all ranks; |result| then stays
        below 256 by 8 standard deviations, so it is exact in bf16 in every order.
        """
        keep = min(1.0, 32.0 / num_terms**0.5)
        signs = self.integers(0, 2, *shape) * 2 - 1
        nonzero = self.uniform(0.0, 1.0, *shape) < keep
        return torch.where(nonzero, signs, 0).to(self.dtype)

    def permutation(self, length: int) -> torch.Tensor:
        """0 to length - 1 in random order of this rank, int64."""
        return torch.randperm(length, generator=self.rng, device=self.device)

    def shared_permutation(self, length: int) -> torch.Tensor:
        """0 to length - 1 in random order, equal on all ranks, int64."""
        return torch.randperm(length, generator=self.shared_rng, device=self.device)

    def distinct(self, num_rows: int, count: int, weights: torch.Tensor) -> torch.Tensor:
        """For each row `count` different places of `weights`, int64 [num_rows, count], drawn by weight.

        Places are drawn one after the other without replacement; at least `count` weights must be positive.
        """
        # The largest of log(weight) + Gumbel noise is a draw by weight, and the next ones those that follow it.
        noise = -(-self.uniform(0.0, 1.0, num_rows, len(weights)).clamp_min(1e-30).log()).log()
        return (weights.float().log() + noise).topk(count, dim=-1).indices

    def shared_counts(self, weights: torch.Tensor, totals: Sequence[int]) -> torch.Tensor:
        """How many of each total fall to each place of `weights`, int64 [len(totals), len(weights)].

        Equal on all ranks; each row of the table adds up to its total.
        """
        ends = (weights.double().cumsum(0) / weights.double().sum())[:-1].float()
        rows = []
        for total in totals:
            place = torch.bucketize(self.shared_uniform(0.0, 1.0, total), ends, right=True)
            rows.append(torch.bincount(place, minlength=len(weights)))
        return torch.stack(rows)

    def _normal(self, shape: Sequence[int], rng: torch.Generator) -> torch.Tensor:
        return torch.randn(tuple(shape), generator=rng, device=rng.device, dtype=torch.float32)

    def _uniform(self, low: float, high: float, shape: Sequence[int], rng: torch.Generator) -> torch.Tensor:
        values = torch.rand(tuple(shape), generator=rng, device=rng.device, dtype=torch.float32)
        return values.mul_(high - low).add_(low)


def keep_first(count: int, kept: torch.Tensor, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The first `count` rows that a bool mask keeps, of each tensor: for rows drawn with spares.

    Raises:
        ValueError: the mask keeps fewer; draw more spares.
    """
    places = kept.nonzero().flatten()[:count]
    if len(places) < count:
        raise ValueError(f"{len(places)} of {len(kept)} rows are kept, {count} are needed: draw more spares")
    return tuple(tensor[places] for tensor in tensors)


def zipf_weights(length: int, device: torch.device) -> torch.Tensor:
    """Weights 1 / (1 + place), adding up to 1, float32."""
    weights = 1 / (1 + torch.arange(length, device=device, dtype=torch.float32))
    return weights / weights.sum()


@dataclass(frozen=True)
class DrawSeeds:
    """Seeds of one draw for one rank. A rank gets its own and the shared one, never a peer's."""

    own: int
    shared: int


def derive_seeds(secret: bytes, *, problem: str, size: str, index: int, rank: int) -> DrawSeeds:
    """Seeds of one draw, derived from the run's secret; without it none can be told from another."""

    def seed(*parts: str) -> int:
        text = "\0".join((problem, size, str(index), *parts)).encode()
        return int.from_bytes(hashlib.blake2b(text, key=secret, digest_size=8).digest(), "little") >> 1

    return DrawSeeds(own=seed("rank", str(rank)), shared=seed("shared"))


def make_draw(
    seeds: DrawSeeds, *, rank: int, world_size: int, dtype: Dtype, index: int, exact: bool, device: str
) -> Draw:
    """A draw whose generators start from the given seeds on the given device."""
    return Draw(
        rank=rank,
        world_size=world_size,
        dtype=torch_dtype(dtype),
        index=index,
        exact=exact,
        rng=torch.Generator(device).manual_seed(seeds.own),
        shared_rng=torch.Generator(device).manual_seed(seeds.shared),
    )
