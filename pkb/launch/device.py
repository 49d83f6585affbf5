"""Facts about this machine: which mode of ranks it can run, how much memory is free, what it is."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

import torch

from pkb.records.errors import UsageError
from pkb.records.machine import Fingerprint
from pkb.records.verdict import DeviceMode

_TIMING_VARIABLES = (
    "NCCL_",
    "TORCH_NCCL_",
    "TORCH_SYMM_MEM_",
    "NVSHMEM_",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
)
_MIN_RANK_BYTES = 2 * 1024**3


def resolve_mode(asked: str, world_size: int) -> DeviceMode:
    """The mode to run in; `auto` takes one GPU per rank if there are enough, else one GPU for all, else the CPU.

    Raises:
        UsageError: the machine cannot run the mode that was asked for; the message says which it can.
    """
    num_gpus = torch.cuda.device_count()
    if asked == "auto":
        if num_gpus == 0:
            return DeviceMode.CPU
        return DeviceMode.CUDA if num_gpus >= world_size else DeviceMode.SHARED_GPU
    mode = DeviceMode(asked)
    if mode is not DeviceMode.CPU and num_gpus == 0:
        why = "torch is a CPU build" if torch.version.cuda is None else "torch sees no GPU"
        raise UsageError(f"--device {mode} needs a GPU, and {why}. Use --device cpu, or see `pkb doctor`.")
    if mode is DeviceMode.CUDA and num_gpus < world_size:
        raise UsageError(
            f"--device cuda needs one GPU per rank: {world_size} ranks, {num_gpus} GPU{'s' * (num_gpus != 1)} here."
            f" Use --device shared-gpu (all ranks on one GPU, no speedups) or --world-size {num_gpus}."
        )
    return mode


def free_bytes(mode: DeviceMode) -> int:
    """Memory that is free for all ranks together: of the machine, of one shared GPU, or of the fullest GPU."""
    if mode is DeviceMode.CPU:
        return _meminfo("MemAvailable")
    if mode is DeviceMode.SHARED_GPU:
        return torch.cuda.mem_get_info(0)[0]
    return min(torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count()))


def rank_memory_limit(mode: DeviceMode, world_size: int) -> int:
    """Limit of private memory of a rank, bytes; 0 where CUDA reserves address ranges that a limit would break."""
    if mode is not DeviceMode.CPU:
        return 0
    return max(_MIN_RANK_BYTES, int(0.9 * _meminfo("MemAvailable")) // world_size)


def num_threads_per_rank(world_size: int) -> int:
    """Threads of a rank on the CPU: the cores shared out, at least one."""
    return max(1, len(os.sched_getaffinity(0)) // world_size)


@cache
def fingerprint(mode: DeviceMode) -> Fingerprint:
    """What has to be equal for two times to be comparable."""
    on_gpu = mode is not DeviceMode.CPU
    return Fingerprint(
        host=hashlib.sha256(platform.node().encode()).hexdigest()[:12],
        device_name=torch.cuda.get_device_name(0) if on_gpu else _cpu_name(),
        num_devices=torch.cuda.device_count(),
        num_cpus=len(os.sched_getaffinity(0)),
        memory_bytes=torch.cuda.get_device_properties(0).total_memory if on_gpu else _meminfo("MemTotal"),
        topology=_topology() if on_gpu else "",
        driver=_driver() if on_gpu else "",
        cuda=torch.version.cuda or "",
        nccl=".".join(
            map(
                str,
                torch.cuda.nccl.version(),
            )
        )
        if on_gpu
        else "",
        torch=torch.__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        environment={name: value for name, value in sorted(os.environ.items()) if name.startswith(_TIMING_VARIABLES)},
        commit=_commit(),
        pkb=version(),
    )


def version() -> str:
    """Version of the installed package; `0+source` when it runs from a folder that was never installed."""
    try:
        return importlib.metadata.version("parallelkernelbench")
    except importlib.metadata.PackageNotFoundError:
        return "0+source"


def _meminfo(key: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise UsageError(f"/proc/meminfo has no {key}: pkb runs on Linux only, this is {sys.platform}.")


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _driver() -> str:
    return _first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])


def _topology() -> str:
    """How GPU 0 reaches GPU 1, as nvidia-smi names it (`NV18`, `PIX`, ...)."""
    if torch.cuda.device_count() < 2:
        return ""
    try:
        text = subprocess.run(
            ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    row = next((line.split() for line in text.splitlines() if line.startswith("GPU0")), [])
    return row[2] if len(row) > 2 else ""


def _commit() -> str:
    root = str(Path(__file__).parents[2])
    commit = _first_line(["git", "-C", root, "rev-parse", "--short=12", "HEAD"])
    changed = _first_line(["git", "-C", root, "status", "--porcelain", "--untracked-files=no"])
    return commit + ("+" if commit and changed else "")


def _first_line(command: list[str]) -> str:
    """First line that a command prints; empty where it does not exist or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""
