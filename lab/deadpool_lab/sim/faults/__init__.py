"""The faults of the safety phase: one function per kind, one file per family of kinds.

To add a kind, write `def inject(world) -> bool` (it returns False where there was nothing to inject it into), wrap it
in a `FaultKind`, and put that into the list of its file, or a new file's list into ALL. Seeds then draw it, and the
command counts it by kind and by the phase of a recovery that it hit.
"""

from deadpool_lab.sim.faults import departures, devices, links, machines
from deadpool_lab.sim.faults.fault import FaultKind, FaultPlan

ALL: tuple[FaultKind, ...] = (
    *machines.MACHINE_FAULTS,
    *machines.TRAINER_FAULTS,
    *machines.SPARE_FAULTS,
    *links.LINK_FAULTS,
    *machines.MEMORY_FAULTS,
    *links.COORDINATOR_FAULTS,
    *departures.DEPARTURE_FAULTS,
    *departures.HEALTH_FAULTS,
    *departures.PROTECTION_FAULTS,
    *machines.MEMORY_USE_FAULTS,
    *departures.SIZE_FAULTS,
    *devices.FAULTS,
    *devices.AUDIT_FAULTS,
    *devices.LASTING_FAULTS,
)
BY_KIND: dict[str, FaultKind] = {fault.kind: fault for fault in ALL}

__all__ = ["ALL", "BY_KIND", "FaultKind", "FaultPlan"]
