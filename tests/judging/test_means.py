"""Whose work a solution is: from what ranks have seen, and on solutions that hide it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pkb.judging.config import JudgeConfig
from pkb.judging.judge import Judge
from pkb.judging.means import Means, means_of
from pkb.launch.plan import Event, ProfileAnswer
from pkb.records.verdict import SolutionClass, Status

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GEMM = "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNT"
ADD = "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, ...>"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
BARRIER = "void c10d::symmetric_memory::(anonymous namespace)::barrier_kernel<(bool)0>(unsigned int**, int, int)"
OWN = "void all_reduce_two_shot<__nv_bfloat16, 8>(Peers, __nv_bfloat16*, int)"


def kernel(name: str, time_us: float, count: int = 1) -> Event:
    return Event(name=name, on_device=True, count=count, time_us=time_us)


def operator(name: str) -> Event:
    return Event(name=name, on_device=False, count=1, time_us=1.0)


def seen(*events: Event, **fields: Any) -> Means:
    base = {"collectives": {}, "barriers": 0, "libraries": (), "symbols": (), "shares_memory": False}
    answer = ProfileAnswer(done="profile", events=events, **{**base, **fields})
    return means_of([answer], on_gpu=any(event.on_device for event in events))


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((kernel(OWN, 95), kernel(ADD, 5)), SolutionClass.CUSTOM),
        ((kernel(OWN, 50), kernel(GEMM, 50)), SolutionClass.HYBRID),
        ((kernel(OWN, 1), kernel(GEMM, 99)), SolutionClass.HYBRID),
        ((kernel("Memcpy PtoP (Device -> Device)", 90), kernel(BARRIER, 500)), SolutionClass.CUSTOM),
        ((kernel(OWN, 50), kernel(NCCL, 50)), SolutionClass.HYBRID),
        ((kernel(OWN, 1), kernel(GEMM, 60), kernel(NCCL, 39)), SolutionClass.LIBRARY),
        ((kernel(NCCL, 100),), SolutionClass.LIBRARY),
    ],
)
def test_class_is_the_share_of_own_kernels_in_device_time(events: tuple[Event, ...], expected: SolutionClass) -> None:
    means = seen(*events)
    assert means.solution_class is expected
    assert bool(means.collectives) == any(event.name == NCCL for event in events)


@pytest.mark.parametrize(
    "name",
    [
        GEMM,
        ADD,
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_cublas",
        "void cub::DeviceReduceKernel<cub::Policy>",
        "void cublasLt::splitKreduce_kernel<32, 16, int>",
        "void splitKreduce_kernel<32, 16, int>",
        "void gemmSN_TN_kernel<float, 128>",
        "ampere_sgemm_128x64_nn",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>(Params)",
        "void pytorch_flash::flash_fwd_kernel<Traits>",
        "void vector_fft<256u, EPT<16u>, 4u>",
        "void gemv2T_kernel_val<int>",
    ],
)
def test_kernels_of_torch_and_cuda_are_known(name: str) -> None:
    assert "library kernels" in seen(kernel(name, 1)).mechanisms
    assert not seen(kernel(name, 1)).collectives


@pytest.mark.parametrize(
    "name", [OWN, "gemm_all_gather", "dot", "triton_mm_ring_kernel", "attention", "my_at_kernel", "nvjet"]
)
def test_other_kernels_are_the_solutions_own(name: str) -> None:
    means = seen(kernel(name, 1))
    assert (means.solution_class, means.mechanisms) == (SolutionClass.CUSTOM, ("kernels",))


@pytest.mark.parametrize(
    "fields",
    [
        {"collectives": {"nccl:all_gather": 2}},
        {"collectives": {"gloo:all_reduce": 1, "gloo:barrier": 1}},
        {"collectives": {"nccl:send 0->1": 1}},
        {"symbols": ("ncclGetVersion", "ncclAllReduce")},
        {"symbols": ("MPI_Iallgatherv",)},
        {"libraries": ("libcrypt.so.2", "libmpi.so.40")},
    ],
)
def test_a_collective_by_any_other_way_counts(fields: dict[str, Any]) -> None:
    means = seen(kernel(OWN, 1), **fields)
    assert means.collectives
    assert means.solution_class is SolutionClass.HYBRID
    assert means.mechanisms[0] == "library collective"


def test_barriers_are_no_collectives() -> None:
    named = {"nccl:all_reduce_barrier": 2, "gloo:barrier": 1}
    barriers = seen(
        kernel(OWN, 100), kernel(NCCL, 2, count=1), operator("c10d::barrier"), collectives=named, barriers=1
    )
    assert not barriers.collectives
    more = seen(kernel(OWN, 100), kernel(NCCL, 2, count=2), operator("c10d::barrier"), collectives=named, barriers=1)
    assert more.collectives


def test_getters_and_other_libraries_are_no_collectives() -> None:
    harmless = seen(
        kernel(OWN, 1),
        symbols=("ncclGetUniqueId", "ncclCommInitRank", "cudaIpcOpenMemHandle"),
        libraries=("libnvrtc.so.13", "mine.cpython-312-x86_64-linux-gnu.so"),
    )
    assert harmless.solution_class is SolutionClass.CUSTOM


def test_on_the_cpu_operators_decide() -> None:
    reduce, add, copy = operator("c10d::allreduce_"), operator("aten::add_"), operator("aten::copy_")
    assert seen(reduce, add).solution_class is SolutionClass.LIBRARY
    assert seen(reduce, add, shares_memory=True).solution_class is SolutionClass.HYBRID
    assert seen(add, copy, shares_memory=True).solution_class is SolutionClass.HYBRID
    assert seen(copy, shares_memory=True).solution_class is SolutionClass.CUSTOM


def test_collectives_of_timed_calls_only_are_found_later() -> None:
    means = seen(kernel(OWN, 1))
    assert means.with_timed([{"gloo:barrier": 9}, {}]) == means
    later = means.with_timed([{}, {"nccl:all_reduce": 40}])
    assert later.collectives == ("nccl:all_reduce while it was timed",)
    assert later.solution_class is SolutionClass.HYBRID


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(JudgeConfig(device="cpu", size="tiny", rounds=0, trials=1, deadline_s=20.0)) as session:
        yield session


@pytest.mark.parametrize(
    ("problem", "file", "expected", "solved"),
    [
        ("allreduce", "pkb/problems/allreduce/reference.py", SolutionClass.LIBRARY, False),
        ("allreduce", "solutions/allreduce/portable/solution.py", SolutionClass.HYBRID, True),
        ("allgather", "tests/judging/classes/gathers_by_copies.py", SolutionClass.CUSTOM, True),
        ("allreduce", "tests/judging/classes/through_a_thread.py", SolutionClass.LIBRARY, False),
        ("allreduce", "tests/judging/classes/own_group.py", SolutionClass.LIBRARY, False),
        ("allreduce", "tests/judging/classes/when_not_profiled.py", SolutionClass.HYBRID, False),
    ],
)
def test_solutions_get_their_class(
    judge: Judge, problem: str, file: str, expected: SolutionClass, solved: bool
) -> None:
    verdict = judge.judge(problem, ROOT / file, more=True)
    assert verdict.status is Status.CORRECT, str(verdict)
    assert (verdict.solution_class, verdict.solved, verdict.library) == (expected, solved, not solved)


def test_a_solution_that_calls_the_library_only_while_it_is_timed_is_not_solved() -> None:
    with Judge(JudgeConfig(device="cpu", size="tiny", rounds=30, trials=1, deadline_s=20.0)) as judge:
        verdict = judge.judge("allreduce", ROOT / "tests/judging/classes/after_the_checks.py")
    assert verdict.status is Status.CORRECT, str(verdict)
    assert (verdict.solved, verdict.library) == (False, True)
    assert any("while it was timed" in note for note in verdict.notes), str(verdict)
