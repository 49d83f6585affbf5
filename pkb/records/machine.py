"""The machine and software that a verdict was reached on."""

from __future__ import annotations

from pydantic import Field

from pkb.records.base import Record


class Fingerprint(Record):
    """What has to be equal for two times to be comparable."""

    host: str
    """Hash of the host name: tells machines apart without naming them."""
    device_name: str
    """`NVIDIA H200`, or the CPU's model name."""
    num_devices: int = Field(ge=0)
    """GPUs that the machine has; 0 without any."""
    num_cpus: int = Field(ge=1)
    """Cores that the judge may use."""
    memory_bytes: int = Field(ge=0)
    """Memory of one GPU, or of the machine when there is none."""
    topology: str = ""
    """How the GPUs are linked, e.g. `NV18`; empty when unknown or alone."""
    driver: str = ""
    """Version of the GPU driver."""
    cuda: str = ""
    """CUDA version that torch was built with; empty for a CPU build."""
    nccl: str = ""
    """Version of NCCL that torch brings."""
    torch: str
    """Version of torch."""
    python: str
    """Version of Python."""
    system: str
    """Kernel name, release and architecture."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables that change times: NCCL_*, TORCH_SYMM_MEM_*, NVSHMEM_*, OMP_NUM_THREADS."""
    commit: str = ""
    """Commit of pkb, with `+` when files differ from it; empty outside a checkout."""
    pkb: str
    """Version of pkb."""
