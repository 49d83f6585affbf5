"""The roofline: no kernel is faster than its bytes over the link, its bytes in memory, or its arithmetic allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pkb.launch.hardware import HardwareProfile
from pkb.problems._spec import Cost, Dtype


@dataclass(frozen=True)
class SpeedOfLight:
    """Least time of a call, and what sets it."""

    time_us: float
    bound: Literal["link", "hbm", "arithmetic", "latency"]


def speed_of_light(cost: Cost, dtype: Dtype, hardware: HardwareProfile) -> SpeedOfLight:
    """max(link bytes / link bandwidth, HBM bytes / HBM bandwidth, FLOPs / peak, latency of one exchange)."""
    flops_per_s = hardware.bf16_flops_per_s if dtype == "bf16" else hardware.tf32_flops_per_s
    latency_s = hardware.latency_s if cost.link_bytes else 0.0
    times: dict[Literal["link", "hbm", "arithmetic", "latency"], float] = {
        "link": cost.link_bytes / hardware.link_bytes_per_s,
        "hbm": cost.hbm_bytes / hardware.hbm_bytes_per_s,
        "arithmetic": cost.flops / flops_per_s,
        "latency": latency_s,
    }
    bound = max(times, key=lambda name: times[name])
    return SpeedOfLight(times[bound] * 1e6, bound)
