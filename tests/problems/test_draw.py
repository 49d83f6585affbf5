"""Draws: whose seeds differ, what is shared, and how large exact numbers get."""

from __future__ import annotations

import itertools

import pytest
import torch

from pkb.problems._draw import Draw, derive_seeds, keep_first, make_draw, zipf_weights
from pkb.problems._spec import Group

SECRET = b"a secret"


def draw(rank: int = 0, *, index: int = 0, dtype: str = "bf16") -> Draw:
    seeds = derive_seeds(SECRET, problem="p", size="tiny", index=index, rank=rank)
    assert dtype in ("bf16", "fp32")
    return make_draw(
        seeds,
        rank=rank,
        world_size=4,
        dtype="bf16" if dtype == "bf16" else "fp32",
        index=index,
        exact=False,
        device="cpu",
    )


def test_seeds_differ_by_rank_draw_size_and_problem() -> None:
    everything = [
        derive_seeds(SECRET, problem=problem, size=size, index=index, rank=rank)
        for problem, size, index, rank in itertools.product(("p", "q"), ("tiny", "base"), (0, 1), (0, 1, 2))
    ]
    assert len({seeds.own for seeds in everything}) == len(everything)
    assert len({seeds.shared for seeds in everything}) == len(everything) // 3
    assert not {seeds.own for seeds in everything} & {seeds.shared for seeds in everything}


def test_seeds_are_those_of_the_secret() -> None:
    one = derive_seeds(SECRET, problem="p", size="tiny", index=0, rank=0)
    again = derive_seeds(SECRET, problem="p", size="tiny", index=0, rank=0)
    other = derive_seeds(b"another", problem="p", size="tiny", index=0, rank=0)
    assert one == again
    assert one.own != other.own and one.shared != other.shared


def test_seed_parts_cannot_be_shifted_into_each_other() -> None:
    one = derive_seeds(SECRET, problem="p", size="tiny_1", index=1, rank=0)
    other = derive_seeds(SECRET, problem="p", size="tiny_", index=11, rank=0)
    assert one != other


def test_own_draws_differ_by_rank_and_shared_ones_do_not() -> None:
    first, second = draw(0), draw(1)
    assert not torch.equal(first.normal(20), second.normal(20))
    assert not torch.equal(first.integers(0, 1000, 20), second.integers(0, 1000, 20))
    assert not torch.equal(first.uniform(0.0, 1.0, 20), second.uniform(0.0, 1.0, 20))
    assert torch.equal(first.shared_normal(20), second.shared_normal(20))
    assert torch.equal(first.shared_integers(0, 1000, 20), second.shared_integers(0, 1000, 20))
    assert torch.equal(first.shared_uniform(0.0, 1.0, 20), second.shared_uniform(0.0, 1.0, 20))


def test_draws_repeat_and_differ_by_index() -> None:
    assert torch.equal(draw(index=1).normal(20), draw(index=1).normal(20))
    assert not torch.equal(draw(index=1).normal(20), draw(index=2).normal(20))
    assert not torch.equal(draw(index=1).shared_normal(20), draw(index=2).shared_normal(20))


def test_working_dtypes_round_the_same_numbers() -> None:
    assert torch.equal(draw(dtype="fp32").normal(50).bfloat16(), draw(dtype="bf16").normal(50))
    assert draw(dtype="fp32").normal(1).dtype == torch.float32


def test_scale_and_range_are_kept() -> None:
    assert 2.8 < float(draw().normal(10_000, scale=3.0).double().std()) < 3.2
    values = draw().uniform(-4.0, 4.0, 10_000)
    assert values.dtype == torch.float32
    assert -4.0 <= float(values.min()) < -3.9 and 3.9 < float(values.max()) < 4.0
    assert set(draw().integers(-1, 2, 1000).tolist()) == {-1, 0, 1}


def test_exact_terms_are_small_integers() -> None:
    assert set(draw().exact_terms(10_000).tolist()) == set(range(-15, 16))


def test_sums_of_exact_factors_are_exact_in_bf16() -> None:
    for depth in (16, 1024, 16384):
        left = draw(0).exact_factors(40, depth, num_terms=depth).double()
        right = draw(1).exact_factors(depth, 40, num_terms=depth).double()
        assert set(left.flatten().tolist()) <= {-1.0, 0.0, 1.0}
        # 256 is 8 standard deviations, of which 1600 sums should not see 5.
        assert float((left @ right).abs().max()) < 5 * 32
        expected_share = min(1.0, 32 / depth**0.5)
        assert abs(float((left != 0).double().mean()) - expected_share) < 0.02


def test_distinct_places_are_distinct_and_follow_the_weights() -> None:
    weights = torch.tensor([8.0, 1.0, 0.0, 1.0, 4.0])
    chosen = draw().distinct(2000, 2, weights)
    assert bool((chosen[:, 0] != chosen[:, 1]).all())
    shares = torch.bincount(chosen[:, 0], minlength=5) / 2000
    assert torch.allclose(shares, weights / weights.sum(), atol=0.05) and shares[2] == 0


def test_shared_counts_add_up_and_are_shared() -> None:
    weights = zipf_weights(4, torch.device("cpu"))
    table = draw(0).shared_counts(weights, [300, 0, 50])
    assert table.sum(dim=1).tolist() == [300, 0, 50] and table[0, 0] > table[0, 3]
    assert torch.equal(table, draw(1).shared_counts(weights, [300, 0, 50]))


def test_permutations_hold_every_place_once() -> None:
    assert draw().permutation(20).sort().values.tolist() == list(range(20))
    assert torch.equal(draw(0).shared_permutation(20), draw(1).shared_permutation(20))
    assert not torch.equal(draw(0).permutation(20), draw(1).permutation(20))


def test_kept_rows_are_the_first_ones_and_too_few_are_an_error() -> None:
    rows, kept = torch.arange(5), torch.tensor([False, True, True, False, True])
    assert keep_first(2, kept, rows)[0].tolist() == [1, 2]
    with pytest.raises(ValueError, match="3 of 5 rows"):
        keep_first(4, kept, rows)


def test_groups_tile_the_ranks() -> None:
    assert Group.whole(3).parts == ((0, 1, 2),)
    assert Group.inner(6, 2).parts == ((0, 1), (2, 3), (4, 5))
    assert Group.outer(6, 2).parts == ((0, 2, 4), (1, 3, 5))
    assert Group.outer(6, 2).part_of(3) == (1, 3, 5)
