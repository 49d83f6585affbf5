"""By what means a candidate communicates and computes: its own, or those of libraries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pkb.launch.plan import COLLECTIVE, NCCL_KERNEL, Event, ProfileAnswer
from pkb.records.verdict import SolutionClass

_COLLECTIVE_SYMBOL = re.compile(
    r"^p?nccl(?:All|Reduce|Bcast|Broadcast|Gather|Scatter|Send|Recv)"
    r"|^P?MPI_I?(?i:all|reduce|bcast|gather|scatter|send|recv|put|get\b)"
    r"|^ucc_collective|^nvshmemx?_\w*(?:reduce|broadcast|alltoall|collect)|^_ZN4gloo"
)
_COLLECTIVE_LIBRARY = re.compile(r"^lib(?:nccl|rccl|mpi|pmpi|ucc|mscclpp|gloo|sharp_coll)\b")
# Kernels that come with torch and CUDA. Barriers and signals of symmetric memory count for neither side.
_LIBRARY_KERNEL = re.compile(
    r"^(?:void )?(?:at|c10|caffe2|cub|thrust|cublas\w*|cudnn\w*|cufft\w*|cusparse\w*|cusolver\w*|pytorch_flash)::"
    r"|^(?:void )?cutlass::Kernel2?<cutlass_\d"
    r"|^(?:void )?(?:gemm[A-Z]+\d?_\w*kernel|gemmk1_kernel|gemv\w*_kernel|gemvx|splitKreduce_kernel|dot_kernel"
    r"|reduce_1Block_kernel|vector_fft|regular_fft|fmha_cutlass[FB]_)\w*"
    r"|^(?:volta|turing|ampere|hopper|maxwell|sm\d+)_\w*(?:gemm|xmma|cudnn|fft|conv)|^nvjet_|^cudnn_"
)
_NEUTRAL_KERNEL = re.compile(r"c10d::symmetric_memory|^Memset|^Memcpy (?!PtoP|Peer)")
_PEER_COPY = ("Memcpy PtoP", "Memcpy Peer")
# Operators of torch that allocate, describe or move, but do not compute.
_MOVING_OPERATOR = re.compile(
    r"^aten::(?:empty|new_|resize|set_|view|_unsafe_view|_reshape|reshape|as_strided|alias|detach|slice|select|narrow"
    r"|split|chunk|unbind|expand|permute|transpose|t$|squeeze|unsqueeze|flatten|contiguous|clone|copy_|_to_copy|to$"
    r"|zero_|zeros|fill_|full|lift_fresh|item|_local_scalar_dense|is_|result_type|resolve_|data$|numpy_T)"
)
_MAX_NAMES = 12
_MAX_NAME_CHARS = 80
_MOST = 0.9
"""Share of the device time of a call that makes it one side's work."""


@dataclass(frozen=True)
class Means:
    """By what means a candidate communicates and computes."""

    solution_class: SolutionClass
    mechanisms: tuple[str, ...]
    collectives: tuple[str, ...]
    """What shows that library collectives are called; empty when nothing does."""

    def with_timed(self, counts: Iterable[Mapping[str, int]]) -> Means:
        """The same, with the collectives that ranks called while they were timed, by name."""
        called = _unique(name for names in counts for name in names if COLLECTIVE.search(name))
        hidden = tuple(f"{name} while it was timed" for name in called) if not self.collectives else ()
        if not hidden:
            return self
        seen = self.solution_class
        return replace(
            self,
            collectives=hidden,
            mechanisms=("library collective", *self.mechanisms),
            solution_class=SolutionClass.HYBRID if seen is SolutionClass.CUSTOM else seen,
        )


def means_of(answers: Sequence[ProfileAnswer], *, on_gpu: bool) -> Means:
    """By what means the candidate does its work, from what each rank has seen of it.

    Args:
        answers: one of each rank.
        on_gpu: whether kernels could be seen; on the CPU only operators can.
    """
    collectives = _unique(name for answer in answers for name in _collectives(answer))
    own_share = _share_of_kernels(answers) if on_gpu else _share_of_operators(answers, bool(collectives))
    if collectives and own_share < 1.0 - _MOST:
        found = SolutionClass.LIBRARY
    elif not collectives and own_share >= _MOST:
        found = SolutionClass.CUSTOM
    else:
        found = SolutionClass.HYBRID
    return Means(found, _mechanisms(answers, bool(collectives)), collectives)


def _collectives(answer: ProfileAnswer) -> list[str]:
    """What shows that a rank called library collectives, each under the name that it was seen by."""
    called = [event.name for event in answer.events if COLLECTIVE.search(event.name)]
    kernels = [event for event in answer.events if event.on_device and NCCL_KERNEL.search(event.name)]
    if sum(event.count for event in kernels) == answer.barriers:
        # NCCL has no barrier of its own: torch's is an all-reduce of one element.
        called = [name for name in called if not NCCL_KERNEL.search(name)]
    called += [name for name in answer.collectives if COLLECTIVE.search(name)]
    called += [f"{name} (through ctypes)" for name in answer.symbols if _COLLECTIVE_SYMBOL.search(name)]
    called += [f"{name} (loaded by the solution)" for name in answer.libraries if _COLLECTIVE_LIBRARY.search(name)]
    return called


def _share_of_kernels(answers: Sequence[ProfileAnswer]) -> float:
    """Share of the device time that the candidate's own kernels, and copies between GPUs, took."""
    own_us = library_us = 0.0
    for event in (event for answer in answers for event in answer.events if event.on_device):
        if _is_of_library(event):
            library_us += event.time_us
        elif not _NEUTRAL_KERNEL.search(event.name):
            own_us += event.time_us
    if own_us + library_us == 0.0:
        return 1.0 if any(answer.shares_memory for answer in answers) else 0.0
    return own_us / (own_us + library_us)


def _share_of_operators(answers: Sequence[ProfileAnswer], calls_collectives: bool) -> float:
    """On the CPU: 1 for communication of its own without torch's arithmetic, 0 for none of its own, else a half."""
    if calls_collectives and not any(answer.shares_memory for answer in answers):
        return 0.0
    names = (event.name for answer in answers for event in answer.events)
    return 0.5 if any(name.startswith("aten::") and not _MOVING_OPERATOR.search(name) for name in names) else 1.0


def _is_of_library(event: Event) -> bool:
    if _NEUTRAL_KERNEL.search(event.name):
        return False
    return bool(COLLECTIVE.search(event.name) or _LIBRARY_KERNEL.search(event.name))


def _mechanisms(answers: Sequence[ProfileAnswer], calls_collectives: bool) -> tuple[str, ...]:
    """Means of moving data and of computing that were seen."""
    device = [event for answer in answers for event in answer.events if event.on_device]
    kernels = [event for event in device if not event.name.startswith(("Memcpy", "Memset"))]
    seen = {
        "library collective": calls_collectives,
        "symmetric memory": any(answer.shares_memory for answer in answers),
        "copy engine": any(event.name.startswith((*_PEER_COPY, "Memcpy DtoD")) for event in device),
        "kernels": any(not _is_of_library(e) and not _NEUTRAL_KERNEL.search(e.name) for e in kernels),
        "library kernels": any(_is_of_library(e) and not COLLECTIVE.search(e.name) for e in kernels),
    }
    return tuple(name for name, was_seen in seen.items() if was_seen)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    """Names in order, cut: ranks sent them, and a candidate can have as many kernels and symbols as it likes."""
    return tuple(dict.fromkeys(name[:_MAX_NAME_CHARS] for name in names))[:_MAX_NAMES]
