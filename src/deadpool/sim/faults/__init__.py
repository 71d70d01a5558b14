"""What goes wrong in the safety phase: one function per kind of fault, one file per family of them.

To add a kind: write `def injection(world) -> bool` (False: there was nobody to do it to), wrap it in a `Fault`, and put
that into the list of its file, or a new file's list into ALL. Everything else follows: seeds draw it, the command
counts it, by kind and by the phase of a recovery that it hit in.
"""

from deadpool.sim.faults import coordinators, departures, links, machines, memory, spares, trainers
from deadpool.sim.faults.fault import Fault, FaultPlan

ALL: tuple[Fault, ...] = (
    *machines.FAULTS,
    *trainers.FAULTS,
    *spares.FAULTS,
    *links.FAULTS,
    *memory.FAULTS,
    *coordinators.FAULTS,
    *departures.FAULTS,
)
BY_KIND: dict[str, Fault] = {fault.kind: fault for fault in ALL}

__all__ = ["ALL", "BY_KIND", "Fault", "FaultPlan"]
