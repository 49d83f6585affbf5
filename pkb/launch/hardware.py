"""Peak rates of GPUs. Needs neither torch nor a GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HardwareProfile:
    """Peak rates of a GPU by its datasheet: what no kernel can exceed."""

    link_bytes_per_s: float
    """NVLink, one direction, all links of a GPU together."""
    hbm_bytes_per_s: float
    bf16_flops_per_s: float
    """Dense matrix rate in bf16."""
    tf32_flops_per_s: float
    """Dense matrix rate in TF32, the fastest that fp32 problems may use."""
    latency_s: float
    """Least time of one store that a peer sees, over NVLink."""


# NVIDIA datasheets of the SXM parts; H200 differs from H100 in memory only. A store seen by a peer takes at
# least a round through the switch, about half a microsecond.
PROFILES = {
    "H100": HardwareProfile(478e9, 3.35e12, 989e12, 495e12, 0.5e-6),
    "H200": HardwareProfile(478e9, 4.8e12, 989e12, 495e12, 0.5e-6),
    "B200": HardwareProfile(900e9, 8.0e12, 2250e12, 1125e12, 0.5e-6),
}


def hardware_profile(device_name: str) -> HardwareProfile | None:
    """Peak rates of a GPU by its name, or None for one that we have no datasheet of."""
    return next((profile for name, profile in PROFILES.items() if name in device_name), None)
