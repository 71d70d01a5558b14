"""Faults of devices: they compute wrongly and say nothing, once, always in the same way, or each time in another."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from deadpool_lab.sim.device import ALWAYS, AT_RANDOM, ONCE
from deadpool_lab.sim.faults.fault import TIME, FaultKind, pick, seated

if TYPE_CHECKING:
    from deadpool_lab.sim.world import World


def _err(how: str, world: World) -> bool:
    machines = pick(world, seated(world))
    for machine in machines:
        world.log("world", "device errs", {"node": machine.name, "how": how})
        machine.device.begin_to_err(how)
    return bool(machines)


TRIGGERS = (TIME, TIME, TIME, "go", "fault")
FAULTS = [
    FaultKind(kind="errs_once", inject=partial(_err, ONCE), chance=0.3, most=2, triggers=TRIGGERS),
    FaultKind(kind="errs_always", inject=partial(_err, ALWAYS), chance=0.15, most=1, triggers=TRIGGERS),
    FaultKind(kind="errs_at_random", inject=partial(_err, AT_RANDOM), chance=0.1, most=1, triggers=TRIGGERS),
]
