"""An operator changes how snapshots are protected while the job runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool.protocol.coding import Scheme
from deadpool.protocol.inputs import SchemeAsked
from deadpool_lab.sim.faults.fault import TIME, FaultKind

if TYPE_CHECKING:
    from deadpool_lab.sim.world import World

SCHEMES = ("copies=1", "copies=2", "rs(2,1)", "rs(4,1)", "rs(3,2)")
TRIGGERS = (TIME, TIME, TIME, "go", "fence", "planned", "drain")


def change_scheme(world: World) -> bool:
    """Asks for another scheme, which is no loss: what protects the watermark stays until something newer is protected
    in the new way. None means that the job is to choose again."""
    asked = [scheme for scheme in map(Scheme.parse, SCHEMES) if scheme.losses < world.layout.positions]
    fitting: list[Scheme | None] = [*asked, *([None] if world.options.coded else [])]
    chosen = world.rng.choice(fitting)
    world.log("world", "scheme", {"scheme": str(chosen)})
    world.feed(SchemeAsked(scheme=chosen))
    return True


FAULTS = [FaultKind(kind="scheme", inject=change_scheme, chance=0.1, most=3, triggers=TRIGGERS)]
