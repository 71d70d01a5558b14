"""What goes wrong in the safety phase, and when: some of it in the middle of a recovery from something else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from deadpool.protocol.effects import FromAgent
from deadpool.protocol.messages import TrainerLost
from deadpool.sim.options import WITHIN_S, FaultPlan
from deadpool.sim.reigns import Reigns

if TYPE_CHECKING:
    from deadpool.sim.machine import Machine
    from deadpool.sim.world import World


class Faults:
    def __init__(self, world: World) -> None:
        self._world = world
        options = world.options
        self.reigns = Reigns(world)
        self._orders: list[tuple[FaultPlan, Callable[[FaultPlan], None]]] = [
            *((plan, self._strike) for plan in options.faults),
            *((plan, self.reigns.strike) for plan in options.reign_faults),
        ]
        self._waiting = {when: [order for order in self._orders if order[0].when == when] for when in WITHIN_S}
        self.struck = 0

    def arm(self) -> None:
        world = self._world
        for plan, strike in self._orders:
            if plan.when == "time":
                world.clock.at(plan.after_s, partial(strike, plan))
        for index, at_s in enumerate(world.options.joins_s):
            world.clock.at(at_s, partial(world.add_machine, f"j{index}", spare=True))
        if world.options.hang_s is not None:
            world.clock.at(world.options.hang_s, self._hang)
        world.on_event = self._on_event

    def _on_event(self, what: str) -> None:
        """Faults that strike in the middle of a recovery, or right after it."""
        if self._waiting.get(what):
            plan, strike = self._waiting[what].pop(0)
            self._world.clock.after(plan.after_s, partial(strike, plan))

    def _strike(self, plan: FaultPlan) -> None:
        if self._world.calm or self._world.outcome is not None:
            return
        match plan.kind:
            case "node":
                self._kill(self._pick(self._seated(), 1))
            case "pair":
                self._kill(self._pick(self._seated(), 2))
            case "spare":
                self._kill(self._pick(self._spares(), 1))
            case "newcomer":
                self._kill(self._pick([m for m in self._seated() if m.spare], 1))
            case "silent":
                self._silence(self._pick(self._seated(), 1))
            case "trainer":
                self._kill_trainer()
            case "alarm":
                self._raise_alarm()

    def _alive(self) -> list[Machine]:
        return [machine for machine in self._world.machines.values() if machine.alive]

    def _seated(self) -> list[Machine]:
        return [machine for machine in self._alive() if machine.name in self._world.coordinator.seats]

    def _spares(self) -> list[Machine]:
        return [machine for machine in self._alive() if machine.name not in self._world.coordinator.seats]

    def _pick(self, machines: list[Machine], count: int) -> list[Machine]:
        return self._world.rng.sample(machines, min(count, len(machines)))

    def _kill(self, machines: list[Machine]) -> None:
        if not machines:
            return
        self.struck += len(machines)
        self._world.checkers.before_loss(nodes=len(machines))
        for machine in machines:
            self._world.tell("world", "machine dies", {"node": machine.name})
            machine.fallen = True
            machine.die()

    def _silence(self, machines: list[Machine]) -> None:
        """Cut off from the coordinator, but alive: its trainers and its data plane go on."""
        for machine in machines:
            self.struck += 1
            self._world.checkers.before_loss(nodes=1)
            self._world.tell("world", "machine cut off", {"node": machine.name})
            machine.fallen = True
            for host in self._world.hosts:
                self._world.cut_off(machine.name, host.name)

    def _kill_trainer(self) -> None:
        processes = [p for machine in self._alive() for p in machine.processes.values() if p.alive]
        resting = [p for p in processes if p.stage == "await_restore"]
        if processes:
            processes = resting or processes  # under a fence, the plan may already count on it
            process = self._world.rng.choice(processes)
            self.struck += 1
            self._world.checkers.before_loss(nodes=0)
            self._world.tell("world", "trainer dies", {"trainer": process.name, "stage": process.stage})
            process.exit(-9, "killed")

    def _hang(self) -> None:
        processes = [p for machine in self._alive() for p in machine.processes.values() if p.is_stepping]
        if processes and self._world.outcome is None:
            process = self._world.rng.choice(processes)
            self.struck += 1
            self._world.checkers.before_loss(nodes=0)
            self._world.tell("world", "trainer hangs", {"trainer": process.name})
            process.hang()

    def _raise_alarm(self) -> None:
        """Communication broke, nobody died: every rank has its live state at the fence."""
        coordinator = self._world.coordinator
        seated = self._seated()
        if coordinator.phase.value != "running" or not seated:
            return
        machine = self._world.rng.choice(seated)
        rank = self._world.layout.ranks_at(coordinator.seats.index(machine.name))[0]
        self.struck += 1
        self._world.tell("world", "alarm", {"rank": rank})
        lost = TrainerLost(generation=coordinator.generation, trainer="", rank=rank, reason="a group broke")
        self._world.feed(FromAgent(node=machine.name, message=lost))
