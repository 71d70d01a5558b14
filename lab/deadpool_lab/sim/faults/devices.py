"""Faults of devices: they compute wrongly and say nothing, once, always in the same way, or each time in another.

Those of `AUDIT_FAULTS` err in steps that are audited, and in no others; those of `LASTING_FAULTS` only where it is
their turn to be judged, and always in the same way.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from deadpool_lab.sim.device import ALWAYS, AT_RANDOM, ONCE, Place
from deadpool_lab.sim.faults.fault import TIME, FaultKind, alive, pick, seated

if TYPE_CHECKING:
    from deadpool_lab.sim.world import World


def _err(how: str, world: World) -> bool:
    machines = pick(world, seated(world))
    for machine in machines:
        world.log("world", "device errs", {"node": machine.name, "how": how})
        machine.device.begin_to_err(how)
    return bool(machines)


def _err_in_audits(place: Place, how: str, world: World) -> bool:
    machines = pick(world, seated(world))
    for machine in machines:
        world.log("world", "device errs in audits", {"node": machine.name, "place": place.value, "how": how})
        machine.device.begin_to_err_in_audits(place, how)
    return bool(machines)


def _err_always_in_audits(place: Place, world: World) -> bool:
    """Any node may err, also one that is a spare now."""
    machines = pick(world, alive(world))
    for machine in machines:
        world.log("world", "device always errs in audits", {"node": machine.name, "place": place.value})
        machine.device.begin_to_err_in_audits(place, ALWAYS)
    return bool(machines)


def _in_audits(kind: str, place: Place, how: str, *, chance: float, most: int = 2) -> FaultKind:
    inject = partial(_err_in_audits, place, how)
    return FaultKind(kind=kind, inject=inject, chance=chance, most=most, triggers=AUDIT_TRIGGERS)


TRIGGERS = (TIME, TIME, TIME, "go", "fault")
FAULTS = [
    FaultKind(kind="errs_once", inject=partial(_err, ONCE), chance=0.3, most=2, triggers=TRIGGERS),
    FaultKind(kind="errs_always", inject=partial(_err, ALWAYS), chance=0.15, most=1, triggers=TRIGGERS),
    FaultKind(kind="errs_at_random", inject=partial(_err, AT_RANDOM), chance=0.1, most=1, triggers=TRIGGERS),
]
AUDIT_TRIGGERS = (TIME, TIME, "step_audit_ordered", "fault")
AUDIT_FAULTS = [
    _in_audits("gradient_errs_once", Place.GRADIENT, ONCE, chance=0.4, most=3),
    _in_audits("gradient_errs_at_random", Place.GRADIENT, AT_RANDOM, chance=0.1, most=1),
    _in_audits("update_errs_once", Place.UPDATE, ONCE, chance=0.3, most=3),
    _in_audits("sum_errs_once", Place.SUM, ONCE, chance=0.3),
]
LASTING_FAULTS = [
    FaultKind(
        kind=f"{place.value}_errs_always",
        inject=partial(_err_always_in_audits, place),
        chance=0.35,
        most=2,
        triggers=AUDIT_TRIGGERS,
    )
    for place in (Place.GRADIENT, Place.UPDATE)
]
