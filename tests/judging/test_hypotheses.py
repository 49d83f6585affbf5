"""Mistakes in whose data a result holds: each is planted, and has to be called by its name."""

from __future__ import annotations

import pytest
import torch
from planted import Trial, poison, total, trial

from pkb.problems._spec import Dtype
from pkb.records.verdict import Cause

# Contributions of ranks


@pytest.mark.parametrize(("ranks", "s"), [(2, 1), (4, 0), (4, 2), (8, 0), (8, 5)])
@pytest.mark.parametrize(("dtype", "is_exact"), [("bf16", False), ("bf16", True), ("fp32", False)])
def test_missing_rank_of_a_sum(ranks: int, s: int, dtype: Dtype, is_exact: bool) -> None:
    t = trial("allreduce", ranks, dtype, exact=is_exact)
    for rank in range(ranks):
        t.plant(1, rank, t.round(total(t, 1, lambda r: t.x(1, r) * (r != s))))
    found = t.explain(1)
    assert found.cause is Cause.MISSING_RANK and f"data of rank {s} are missing" in found.detail


def test_missing_rank_of_one_result_of_two_ranks() -> None:
    t = trial("allreduce", 2)
    t.plant(1, 0, t.round(t.x(1, 0)))
    found = t.explain(1)
    assert found.cause is Cause.MISSING_RANK and "data of rank 1 are missing" in found.detail


def test_each_rank_missing_another() -> None:
    t = trial("reducescatter")
    for rank in range(4):
        parts = [t.x(0, r).chunk(4)[rank] for r in range(4) if r != (rank + 1) % 4]
        t.plant(0, rank, t.round(torch.stack(parts).sum(dim=0)))
    found = t.explain(0)
    assert found.cause is Cause.MISSING_RANK
    assert "on rank 0 the data of rank 1 are missing" in found.detail.lower()
    assert "on rank 3 the data of rank 0 are missing" in found.detail


@pytest.mark.parametrize("fill", ["zero", "poison"])
@pytest.mark.parametrize(("name", "s"), [("allgather", 1), ("allgather", 3), ("alltoall", 3), ("alltoall", 0)])
def test_missing_rank_of_a_move_is_its_slice(name: str, s: int, fill: str) -> None:
    t = trial(name)
    result = t.copy(2, 0)
    if fill == "zero":
        result[s] = 0
    else:
        poison(result[s])
    t.plant(2, 0, result)
    found = t.explain(2)
    assert found.cause is Cause.MISSING_RANK and f"data of rank {s} are missing" in found.detail


def test_missing_block_of_uneven_splits() -> None:
    t = trial("moe_all2all_primitive")
    lengths = [t.calls[0].inputs[r][1][2] for r in range(4)]
    result = t.copy(0, 2)
    result[lengths[0] : lengths[0] + lengths[1]] = 0
    t.plant(0, 2, result)
    found = t.explain(0)
    assert lengths[1] > 0 and found.cause is Cause.MISSING_RANK and "data of rank 1 are missing" in found.detail


def test_own_part_missing_of_a_gathered_product() -> None:
    t = trial("allgather_gemm", dtype="fp32")
    for rank in range(4):
        A = torch.cat([t.x(0, r) * (r != rank) for r in range(4)], dim=1)
        t.plant(0, rank, t.round(A @ t.x(0, rank, 1)))
    found = t.explain(0)
    assert found.cause is Cause.MISSING_RANK and "own part of ranks 0, 1, 2, 3 is missing" in found.detail


@pytest.mark.parametrize("is_exact", [False, True])
def test_doubled_rank(is_exact: bool) -> None:
    for name in ("allreduce", "gemm_reducescatter"):
        t = trial(name, exact=is_exact)

        def part(r: int, t: Trial = t, name: str = name) -> torch.Tensor:
            product = t.x(1, r) @ t.x(1, r, 1) if name == "gemm_reducescatter" else t.x(1, r)
            return product * (2 if r == 2 else 1)

        whole = total(t, 1, part)
        for rank in range(4):
            t.plant(1, rank, t.round(whole.chunk(4)[rank] if name == "gemm_reducescatter" else whole))
        found = t.explain(1)
        assert found.cause is Cause.DOUBLED_RANK and "contribution of rank 2 is counted twice" in found.detail


def test_own_data_only_of_sums() -> None:
    for name in ("allreduce", "gemm_reducescatter"):
        t = trial(name)
        for rank in range(4):
            own = t.x(1, rank) if name == "allreduce" else (t.x(1, rank) @ t.x(1, rank, 1)).chunk(4)[rank]
            t.plant(1, rank, t.round(own))
        assert t.explain(1).cause is Cause.OWN_DATA_ONLY


def test_own_data_only_of_moves() -> None:
    t = trial("allgather")
    for rank in range(4):
        result = t.copy(0, rank)
        result[[r for r in range(4) if r != rank]] = 0
        t.plant(0, rank, result)
    assert t.explain(0).cause is Cause.OWN_DATA_ONLY
    t = trial("alltoall", 2)
    for rank in range(2):
        t.plant(0, rank, t.round(t.x(0, rank)))
    found = t.explain(0)
    assert found.cause is Cause.OWN_DATA_ONLY and "own input is returned" in found.detail


def test_own_mean_of_a_norm_is_own_data_only() -> None:
    t = trial("tp_rms_norm")
    for rank in range(4):
        x, weight, epsilon = t.x(1, rank), t.x(1, rank, 1), t.calls[1].inputs[rank][2]
        t.plant(1, rank, t.round(x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight))
    found = t.explain(1)
    assert found.cause is Cause.OWN_DATA_ONLY and "as if every peer held a copy" in found.detail


def test_rank_left_out_of_a_sum_of_exponentials() -> None:
    t = trial("vocab_parallel_cross_entropy_loss", dtype="fp32", first=1)
    target = t.calls[0].inputs[0][1].unsqueeze(-1)
    logits = torch.cat([t.x(0, r) for r in range(4)], dim=-1)
    without = torch.cat([t.x(0, r) for r in range(4) if r != 1], dim=-1)
    loss = t.round(without.logsumexp(dim=-1) - logits.take_along_dim(target, dim=-1).squeeze(-1))
    t.plant(0, 3, torch.where(target.squeeze(-1) // 13 == 1, t.calls[0].got[3], loss))
    found = t.explain(0)
    assert found.cause is Cause.MISSING_RANK and "Rank 1's data are left out" in found.detail


# Other calls


def test_previous_answer_again_is_stale() -> None:
    t = trial("allreduce", size="tiny_2d")
    t.plant(2, 1, t.copy(1, 1))
    found = t.explain(2)
    assert found.cause is Cause.STALE and "answer of the previous call (call 1)" in found.detail


def test_first_answer_kept_is_stale() -> None:
    t = trial("alltoall")
    for call in (1, 2, 3):
        for rank in range(4):
            t.plant(call, rank, t.copy(0, rank))
    found = t.explain(1)
    assert found.cause is Cause.STALE and "answer of the first call is returned again" in found.detail


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("name", ["allreduce", "allgather"])
def test_stale_data_of_one_rank(name: str, ranks: int) -> None:
    t = trial(name, ranks, exact=name == "allreduce")
    if name == "allreduce":
        t.plant(2, 0, t.round(total(t, 2, lambda r: t.x(1 if r == 1 else 2, r))))
    else:
        result = t.copy(2, 0)
        result[1] = t.round(t.x(1, 1))
        t.plant(2, 0, result)
    found = t.explain(2)
    assert found.cause is Cause.STALE
    assert "data of rank 1 are those of the previous call (call 1)" in found.detail


def test_stale_data_between_sizes_names_the_distance() -> None:
    t, other = trial("allgather"), trial("allgather", size="tiny_2d")
    t.calls = [t.calls[0], other.calls[0], t.calls[1], other.calls[1]]
    result = t.copy(2, 3)
    result[0] = t.round(t.x(0, 0))
    t.plant(2, 3, result)
    found = t.explain(2)
    assert found.cause is Cause.STALE and "rank 0 are those of call 0, 2 calls earlier" in found.detail


def test_stale_shard_of_a_gathered_product() -> None:
    t = trial("allgather_gemm")
    A = torch.cat([t.x(1 if r == 3 else 2, r) for r in range(4)], dim=1)
    t.plant(2, 0, t.round(A @ t.x(2, 0, 1)))
    found = t.explain(2)
    assert found.cause is Cause.STALE and "data of rank 3 are those of the previous call" in found.detail


def test_returned_buffer_overwritten_by_the_next_call() -> None:
    t = trial("reducescatter", 2)
    for call in range(3):
        for rank in range(2):
            t.plant(call, rank, t.round(t.calls[call + 1].want[rank]))
    found = t.explain(0)
    assert found.cause is Cause.OVERWRITTEN
    assert "returned tensor was overwritten by the next call (call 1)" in found.detail


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_part_of_one_ranks_data_overwritten(ranks: int) -> None:
    t = trial("allreduce", ranks, size="tiny_2d")
    late = t.round(total(t, 1, lambda r: t.x(2 if r == 0 else 1, r)))
    result = t.copy(1, 1)
    result[20:] = late[20:]
    t.plant(1, 1, result)
    found = t.explain(1)
    assert found.cause is Cause.OVERWRITTEN
    assert "data of rank 0 are those of the next call (call 2)" in found.detail
    assert "of the elements where it would show" in found.detail


def test_data_of_several_ranks_overwritten_here_and_there() -> None:
    t = trial("allreduce", 4, "fp32", size="tiny_2d")
    row = torch.arange(33).unsqueeze(-1)
    result = total(t, 1, lambda r: torch.where((row % 11 < 4 * r) & (r > 0), t.x(2, r), t.x(1, r)))
    t.plant(1, 0, t.round(result))
    found = t.explain(1)
    assert found.cause is Cause.OVERWRITTEN and "one or more of ranks 1, 2, 3" in found.detail


def test_missing_barrier_of_a_gather_with_eight_ranks() -> None:
    t = trial("allgather", 8)
    result = t.copy(1, 0)
    for r in (2, 5, 7):
        result[r] = t.round(t.x(2, r))
    t.plant(1, 0, result)
    found = t.explain(1)
    assert found.cause is Cause.OVERWRITTEN and "ranks 2, 5, 7" in found.detail


# Order of ranks


def test_result_of_another_rank() -> None:
    t = trial("reducescatter", 2)
    t.plant(0, 0, t.copy(0, 1))
    t.plant(0, 1, t.round(t.calls[0].want[0]))
    found = t.explain(0)
    assert found.cause is Cause.PERMUTED_RANKS and "rank 1 returned what rank 0 should return" in found.detail


@pytest.mark.parametrize("name", ["allgather", "alltoall"])
def test_swapped_blocks(name: str) -> None:
    t = trial(name)
    for rank in range(4):
        t.plant(0, rank, t.copy(0, rank)[[0, 3, 2, 1]])
    found = t.explain(0)
    assert found.cause is Cause.PERMUTED_RANKS and "data of ranks 1 and 3 are swapped" in found.detail


def test_blocks_in_order_of_arrival() -> None:
    t = trial("allgather")
    for rank in range(4):
        t.plant(0, rank, t.copy(0, rank).roll(-rank, 0))
    found = t.explain(0)
    assert found.cause is Cause.PERMUTED_RANKS
    assert "on rank 1 the data of all ranks are rotated by 1" in found.detail.lower()
    assert "on rank 3 the data of all ranks are rotated by 3" in found.detail


def test_slices_of_a_gathered_product_in_the_wrong_order() -> None:
    t = trial("allgather_gemm")
    for rank in range(4):
        A = torch.cat([t.x(0, (r + 1) % 4) for r in range(4)], dim=1)
        t.plant(0, rank, t.round(A @ t.x(0, rank, 1)))
    found = t.explain(0)
    assert found.cause is Cause.PERMUTED_RANKS and "rotated by 1" in found.detail


def test_one_ranks_block_twice() -> None:
    t = trial("allgather")
    result = t.copy(0, 0)
    result[1] = result[2]
    t.plant(0, 0, result)
    found = t.explain(0)
    assert found.cause is Cause.PERMUTED_RANKS
    assert "data of rank 2 stand where rank 1's belong" in found.detail


def test_workspace_that_was_not_cleared() -> None:
    t = trial("gemm_allreduce", 2)
    for rank in range(2):
        t.plant(1, rank, t.round(t.calls[0].want[rank] + t.calls[1].want[rank]))
    found = t.explain(1)
    assert found.cause is Cause.STALE and "not cleared" in found.detail
