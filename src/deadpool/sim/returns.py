"""Machines that are cut off from every coordinator for a while and come back: taken for lost, or not even noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deadpool.sim.machine import Machine
    from deadpool.sim.world import World


def cut_off_for(world: World, machine: Machine, seconds: float) -> None:
    """Its trainers and its data plane go on; what it says is lost, and links that had traffic meanwhile are broken."""
    cuts = {pair for host in world.hosts for pair in ((machine.name, host.name), (host.name, machine.name))}
    fresh = cuts - world.cuts
    world.tell("world", "machine cut off for a while", {"node": machine.name, "seconds": seconds})
    world.cuts |= fresh

    def heal() -> None:
        world.tell("world", "machine can be reached again", {"node": machine.name})
        world.cuts -= fresh

    world.clock.after(seconds, heal)
