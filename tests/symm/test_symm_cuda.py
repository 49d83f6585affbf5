"""The CUDA backend: what a handle asks of torch's symmetric memory; on a GPU, ranks that share it."""

import os
from typing import Any, cast

import pytest
import torch
from symm_ranks import run_ranks
from symm_solutions import NAMES, path_of, run_back_to_back
from torch._C._distributed_c10d import _SymmetricMemory

from pkb import symm
from pkb.records.errors import UsageError
from pkb.symm._cuda import CudaHandle


class FakeMapped:
    """Stands for torch's _SymmetricMemory of rank 1 of 3 and notes what it is asked for."""

    rank = 1
    world_size = 3
    buffer_ptrs = (100, 200, 300)
    signal_pad_ptrs = (1, 2, 3)
    multicast_ptr = 0

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def get_buffer(self, rank: int, sizes: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        return torch.full(sizes, rank, dtype=dtype)

    def barrier(self, channel: int, timeout_ms: int) -> None:
        self.calls.append(("barrier", channel, timeout_ms))

    def put_signal(self, dst_rank: int, channel: int, timeout_ms: int) -> None:
        self.calls.append(("put_signal", dst_rank, channel, timeout_ms))

    def wait_signal(self, src_rank: int, channel: int, timeout_ms: int) -> None:
        self.calls.append(("wait_signal", src_rank, channel, timeout_ms))


def test_barriers_and_signals_use_channels_of_their_own() -> None:
    mapped = FakeMapped()
    handle = CudaHandle(torch.zeros(2), cast(_SymmetricMemory, mapped))
    callbacks: list[int] = []
    symm.set_after_barrier(lambda: callbacks.append(len(mapped.calls)))
    symm.set_timeout(2.5)
    try:
        handle.barrier()
        handle.barrier(3)
        handle.signal(2)
        handle.wait(0, channel=3)
        with pytest.raises(UsageError, match="peer rank 3 is out of range"):
            handle.signal(3)
    finally:
        symm.set_after_barrier(None)
        symm.set_timeout(300)
    assert mapped.calls == [
        ("barrier", 0, 2500),
        ("barrier", 6, 2500),
        ("put_signal", 2, 1, 2500),
        ("wait_signal", 0, 7, 2500),
    ]
    assert callbacks == [1, 2, 4]


def test_peers_are_views_of_torchs_buffers_and_the_own_one_is_the_tensor() -> None:
    tensor = torch.full((2, 2), 9, dtype=torch.int64)
    handle = CudaHandle(tensor, cast(_SymmetricMemory, FakeMapped()))
    assert handle.peer(1) is tensor
    assert [handle.peer(rank).tolist() for rank in (0, 2)] == [[[0, 0]] * 2, [[2, 2]] * 2]
    assert (handle.ptrs, handle.signal_ptrs, handle.multicast_ptr) == ((100, 200, 300), (1, 2, 3), 0)


def _on_one_gpu(sources: dict[str, tuple[str, str]]) -> dict[str, tuple[int, str]]:
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    torch.cuda.set_device(0)
    own = symm.empty((0, 3), dtype=torch.bfloat16)
    assert own.is_cuda
    symm.rendezvous(own).barrier()
    handle = symm.rendezvous(symm.empty(5, dtype=torch.float32))
    assert bool(handle.tensor.isnan().all())
    assert handle.tensor.data_ptr() == handle.ptrs[handle.rank]
    assert symm.rendezvous(handle.tensor).ptrs == handle.ptrs
    with pytest.raises(UsageError, match="did not come from"):
        symm.rendezvous(torch.zeros(5, device="cuda"))
    peer, source = (handle.rank + 1) % handle.world_size, (handle.rank - 1) % handle.world_size
    for step in range(5):
        handle.peer(peer).fill_(step)
        handle.signal(peer)
        handle.barrier()
        handle.wait(source)
        assert handle.tensor.tolist() == [step] * 5
        handle.barrier()
    return run_back_to_back(sources, 14, 0.005, "cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_several_ranks_share_one_gpu(world_size: int) -> None:
    sources = {name: (name, path_of(name).read_text(encoding="utf-8")) for name in NAMES}
    of_ranks = run_ranks(_on_one_gpu, world_size, sources, deadline_s=240)
    for verdicts in of_ranks:
        assert {name: wrong for name, (wrong, _) in verdicts.items()} == dict.fromkeys(NAMES, 0)
    assert len({verdicts["allreduce"][1] for verdicts in of_ranks}) == 1
