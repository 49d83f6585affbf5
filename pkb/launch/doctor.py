"""Findings about this machine: what it can run, and what is missing for the rest."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pkb.launch.device import free_bytes
from pkb.records.verdict import DeviceMode

_CUDA_MODULES = {"cuda.bindings": "cuda-bindings", "nvidia.cu13": "nvidia-cuda-nvrtc"}
_MIN_SHM_BYTES = 1024**3


@dataclass(frozen=True)
class FindingOfMachine:
    """One thing that works or does not."""

    name: str
    works: bool
    detail: str


def examine() -> list[FindingOfMachine]:
    """Everything that decides which modes and which solutions run here."""
    return list(_findings())


def _findings() -> Iterator[FindingOfMachine]:
    num_gpus = torch.cuda.device_count()
    build = f"torch {torch.__version__}" + (f", CUDA {torch.version.cuda}" if torch.version.cuda else ", CPU build")
    cores = len(os.sched_getaffinity(0))
    memory = free_bytes(DeviceMode.CPU) / 2**30
    yield FindingOfMachine("torch", True, build)
    yield FindingOfMachine("cpu ranks", True, f"{cores} cores, {memory:.1f} GiB free")
    gpu_word = f"{num_gpus} GPU{'s' * (num_gpus != 1)}"
    why = "torch is a CPU build" if torch.version.cuda is None else "torch sees no GPU; look at nvidia-smi"
    yield FindingOfMachine(
        "shared-gpu ranks", num_gpus >= 1, f"{gpu_word}: up to 8 ranks take turns on one" if num_gpus else why
    )
    yield FindingOfMachine(
        "cuda ranks",
        num_gpus >= 2,
        f"{gpu_word}: up to {num_gpus} ranks, with speedups" if num_gpus >= 2 else f"{gpu_word}; speedups need 2",
    )
    if num_gpus >= 2:
        linked = all(torch.cuda.can_device_access_peer(0, i) for i in range(1, num_gpus))
        yield FindingOfMachine("peer access", linked, "GPU 0 reaches all others" if linked else "missing from GPU 0")
    yield _sandbox()
    yield from _compilers()
    free_shm = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0
    yield FindingOfMachine(
        "/dev/shm", free_shm >= _MIN_SHM_BYTES, f"{free_shm / 2**30:.1f} GiB free for symmetric memory of CPU ranks"
    )


def _sandbox() -> FindingOfMachine:
    """Whether candidates can be kept apart from this machine; tried in a process that has no threads yet."""
    trial = [sys.executable, "-m", "pkb.launch.sandbox"]
    done = subprocess.run(trial, capture_output=True, text=True, timeout=30)
    reason = " ".join((done.stdout or done.stderr).split())
    says = "own files, processes, network and IPC for each candidate" if done.returncode == 0 else reason
    return FindingOfMachine("sandbox", done.returncode == 0, says)


def _compilers() -> Iterator[FindingOfMachine]:
    missing = [package for module, package in _CUDA_MODULES.items() if not _has(module)]
    yield FindingOfMachine(
        "NVRTC (pkb.cuda)",
        not missing,
        "compiles kernels, for sm_90a where there is no GPU"
        if not missing
        else f"missing {', '.join(missing)}: pip install 'parallelkernelbench[cuda]'",
    )
    tools = [tool for tool in ("nvcc", "ninja", "g++") if shutil.which(tool) is None]
    inline = not tools and torch.version.cuda is not None
    yield FindingOfMachine(
        "load_inline",
        inline,
        "nvcc, ninja and g++ found"
        if inline
        else f"missing {', '.join(tools) or 'a CUDA build of torch'}; only solutions that use load_inline need it",
    )


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
