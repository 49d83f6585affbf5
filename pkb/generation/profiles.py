"""Hardware that prompts describe: peak rates from the judge's own profiles, and what a kernel's author has to know."""

from __future__ import annotations

from dataclasses import dataclass

from pkb.launch.hardware import PROFILES, HardwareProfile
from pkb.records.errors import UsageError


@dataclass(frozen=True)
class Machine:
    """GPUs that are linked to each other."""

    name: str
    gpu: str
    """Key of the GPU's peak rates in `pkb.launch.hardware`."""
    num_gpus: int
    num_sms: int
    memory_gb: int
    arch: str
    """What kernels are compiled for."""
    links: str
    """How the GPUs are linked."""
    multicast: bool
    """Whether multimem instructions can be used between the GPUs."""

    @property
    def rates(self) -> HardwareProfile:
        """Peak rates of one GPU."""
        return PROFILES[self.gpu]


_SWITCHED = "all to all through NVSwitch"
MACHINES = {
    machine.name: machine
    for machine in (
        Machine("h100_8", "H100", 8, 132, 80, "sm_90a", f"NVLink 4, {_SWITCHED}", multicast=True),
        Machine("h200_8", "H200", 8, 132, 141, "sm_90a", f"NVLink 4, {_SWITCHED}", multicast=True),
        Machine("h200_2", "H200", 2, 132, 141, "sm_90a", "NVLink 4", multicast=False),
        Machine("b200_8", "B200", 8, 148, 180, "sm_100a", f"NVLink 5, {_SWITCHED}", multicast=True),
        Machine(
            "b200_72", "B200", 72, 148, 186, "sm_100a", f"NVLink 5, {_SWITCHED}, one domain of a rack", multicast=True
        ),
    )
}


def get_machine(name: str) -> Machine:
    """The machine of a profile's name.

    Raises:
        UsageError: there is no such profile.
    """
    if name not in MACHINES:
        raise UsageError(f"no hardware profile {name!r}; there are {', '.join(MACHINES)}. Use --hardware.")
    return MACHINES[name]
