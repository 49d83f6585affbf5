"""What ranks see of each other's buffers, what a rendezvous refuses, and what is left behind."""

import ctypes
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from symm_ranks import outcomes_of_ranks, run_ranks

from pkb import symm
from pkb.records.errors import UsageError

DTYPES = (
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
)
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (3, 0), (1,), (5, 7))


def _content(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 100, shape, generator=generator).remainder(2 if dtype == torch.bool else 100).to(dtype)


def _share_everything() -> int:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    checked = 0
    for dtype in DTYPES:
        for shape in SHAPES:
            buffer = symm.empty(shape, dtype=dtype)
            handle = symm.rendezvous(buffer)
            assert (handle.rank, handle.world_size) == (rank, world_size)
            assert handle.tensor is buffer and handle.peer(rank) is buffer
            buffer.copy_(_content(shape, dtype, seed=rank))
            handle.barrier()
            for peer in range(world_size):
                view = handle.peer(peer)
                assert view.shape == shape and view.dtype == dtype
                assert torch.equal(view, _content(shape, dtype, seed=peer)), f"{shape} {dtype} of rank {peer}"
                checked += 1
            handle.barrier()
            handle.peer((rank + 1) % world_size).copy_(_content(shape, dtype, seed=100 + rank))
            handle.barrier()
            assert torch.equal(buffer, _content(shape, dtype, seed=100 + (rank - 1) % world_size))
    return checked


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_peers_see_writes_after_a_barrier(world_size: int) -> None:
    assert run_ranks(_share_everything, world_size) == [world_size * len(DTYPES) * len(SHAPES)] * world_size


def _read_through_pointers() -> list[int]:
    handle = symm.rendezvous(symm.empty(4, dtype=torch.int64))
    handle.tensor.fill_(dist.get_rank() + 10)
    handle.barrier()
    assert handle.tensor.data_ptr() == handle.ptrs[handle.rank]
    assert handle.multicast_ptr == 0
    assert len(set(handle.ptrs + handle.signal_ptrs)) == 2 * handle.world_size
    assert all(address % 4096 == 0 for address in handle.ptrs)
    return [ctypes.c_int64.from_address(address).value for address in handle.ptrs]


def test_pointers_lead_to_the_peers_buffers() -> None:
    assert run_ranks(_read_through_pointers, 2) == [[10, 11], [10, 11]]


def _meet_again() -> None:
    pair = dist.new_group([0, 1])
    buffer = symm.empty((2, 6), dtype=torch.float32)
    first = symm.rendezvous(buffer, pair)
    first.barrier()
    second = symm.rendezvous(buffer.view(torch.int32).view(3, 4), pair)
    second.tensor.fill_(second.rank)
    second.barrier()
    peer = 1 - first.rank
    assert second.peer(peer).shape == (3, 4) and bool((second.peer(peer) == peer).all())
    assert torch.equal(first.peer(peer).view(torch.int32), second.peer(peer).view(2, 6))
    first.barrier()
    with pytest.raises(UsageError, match="rank 0 passed a buffer that already belongs to the group"):
        symm.rendezvous(buffer)


def test_a_second_rendezvous_shares_barriers_and_a_second_group_is_refused() -> None:
    run_ranks(_meet_again, 2)


def _use_a_subgroup() -> str:
    rank = dist.get_rank()
    odd = dist.new_group([1, 3])
    if rank % 2 == 0:
        with pytest.raises(UsageError, match="is not in the given group"):
            symm.rendezvous(symm.empty(1, dtype=torch.int64), odd)
        return "outside"
    handle = symm.rendezvous(symm.empty(1, dtype=torch.int64), odd)
    handle.tensor.fill_(rank)
    handle.barrier()
    assert [int(handle.peer(r)) for r in range(2)] == [1, 3]
    with pytest.raises(UsageError, match=r"peer rank 2 is out of range: the group has 2 ranks, 0 to 1"):
        handle.peer(2)
    return "inside"


def test_ranks_of_a_subgroup_are_counted_in_it() -> None:
    assert run_ranks(_use_a_subgroup, 4) == ["outside", "inside", "outside", "inside"]


def _offer_unfit_tensors() -> list[str]:
    rank = dist.get_rank()
    good = symm.empty(4, 4, dtype=torch.float32)
    offers: list[Any] = [
        good if rank == 0 else torch.zeros(4, 4),
        good if rank == 0 else [1.0],
        good if rank == 0 else good[1:],
        good if rank == 0 else good.t(),
        symm.empty(4, 4 + rank, dtype=torch.float32),
        symm.empty(4, 4, dtype=torch.float32 if rank == 0 else torch.int32),
        symm.empty(32 + 32 * rank, dtype=torch.float32)[:32],
    ]
    messages = []
    for offer in offers:
        with pytest.raises(UsageError) as caught:
            symm.rendezvous(offer)
        messages.append(str(caught.value))
    # A refused buffer is still good for a rendezvous that fits.
    symm.rendezvous(good).barrier()
    return messages


def test_all_ranks_get_the_same_message_when_a_tensor_cannot_be_shared() -> None:
    messages, of_rank_1 = run_ranks(_offer_unfit_tensors, 2)
    assert messages == of_rank_1
    expected = [
        "rank 1 passed a tensor on cpu that did not come from pkb.symm.empty(). Allocate with",
        "rank 1 passed a list that did not come from",
        "rank 1 passed a view that is not contiguous or does not start where",
        "rank 1 passed a view that is not contiguous or does not start where",
        "rank 0 has [4, 4] float32 on cpu (64 bytes); rank 1 has [4, 5] float32 on cpu (80 bytes)",
        "rank 0 has [4, 4] float32 on cpu (64 bytes); rank 1 has [4, 4] int32 on cpu (64 bytes)",
        "rank 0 has [32] float32 on cpu (128 bytes); rank 1 has [32] float32 on cpu (256 bytes)",
    ]
    for message, part in zip(messages, expected, strict=True):
        assert part in message


def test_contents_are_nan_until_written() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        assert bool(symm.empty(3, 5, dtype=dtype).isnan().all())
    assert symm.empty([2, 3], dtype=torch.int64).tolist() == [[-1] * 3] * 2


def test_requests_that_cannot_be_met_are_explained() -> None:
    with pytest.raises(UsageError, match=r"Call torch\.distributed\.init_process_group"):
        symm.rendezvous(symm.empty(1, dtype=torch.int64))
    with pytest.raises(UsageError, match="non-negative integers"):
        symm.empty(2, -1, dtype=torch.int64)
    with pytest.raises(UsageError, match=r"no symmetric memory\. Use 'cpu' or 'cuda'"):
        symm.empty(1, dtype=torch.int64, device="meta")
    with pytest.raises(UsageError, match=r"no room for a symmetric buffer of \d+ bytes \(/dev/shm: "):
        symm.empty(1 << 56, dtype=torch.uint8, device="cpu")
    with pytest.raises(UsageError, match="positive number of seconds, got 0"):
        symm.set_timeout(0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_a_missing_gpu_is_named() -> None:
    with pytest.raises(UsageError, match="torch sees no GPU here"):
        symm.empty(1, dtype=torch.int64, device="cuda:0")


def _mappings() -> list[str]:
    """Paths of the shared files mapped here, as the kernel names them; ` (deleted)` follows a name that is gone."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return [match.group() for line in lines if (match := re.search(r"/dev/shm/(pkb-symm-|#).*", line))]


def _die_after_rendezvous() -> list[str]:
    handle = symm.rendezvous(symm.empty(1000, dtype=torch.int64))
    handle.tensor.fill_(handle.rank)
    handle.barrier()
    if handle.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    # Waits until rank 1 is gone; its memory outlives it.
    with pytest.raises(RuntimeError):
        dist.barrier()
    assert bool((handle.peer(1) == 1).all())
    return _mappings()


def test_a_killed_rank_leaves_no_file() -> None:
    outcomes = outcomes_of_ranks(_die_after_rendezvous, 2)
    assert outcomes[1].error == "died without a word"
    assert not outcomes[0].error, outcomes[0].error
    mapped = outcomes[0].value
    assert len(mapped) == 2
    assert all(path.endswith(" (deleted)") for path in mapped)
    assert not any(os.path.exists(path.removesuffix(" (deleted)")) for path in mapped)


def _die_before_rendezvous() -> list[str]:
    kept = symm.empty(1000, dtype=torch.int64)
    assert kept.numel() == 1000
    return _mappings()


def test_a_buffer_has_no_name_before_the_rendezvous() -> None:
    (mapped,) = run_ranks(_die_before_rendezvous, 1)
    assert len(mapped) == 1 and mapped[0].endswith(" (deleted)")


def _drop_buffers() -> tuple[int, int, int]:
    handle = symm.rendezvous(symm.empty(1000, dtype=torch.int64))
    handle.tensor.fill_(handle.rank)
    handle.barrier()
    while_held = len(_mappings())
    view = handle.peer(1 - handle.rank)[10:]
    del handle
    dist.barrier()
    assert bool((view == 1 - dist.get_rank()).all())
    while_viewed = len(_mappings())
    del view
    return while_held, while_viewed, len(_mappings())


def test_memory_is_unmapped_with_the_last_tensor_on_it() -> None:
    assert run_ranks(_drop_buffers, 2) == [(2, 1, 0)] * 2
