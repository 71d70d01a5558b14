"""The hosts on which coordinators run. Their processes die, start again without memory, stall, and are cut off."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

from deadpool.protocol.coordinator.core import Coordinator
from deadpool.protocol.coordinator.leadership.leadership import Leadership
from deadpool.protocol.coordinator.outbox import CoordinatorConfig
from deadpool.protocol.effects import CoordinatorEffect, Drop, Emit, Finish, ToAgent
from deadpool.protocol.inputs import FromAgent, LinkLost, Stalled, Tick
from deadpool.protocol.messages import JoinRefused, Order
from deadpool_lab.sim.network import Link

if TYPE_CHECKING:
    from deadpool_lab.sim.machine import Machine
    from deadpool_lab.sim.world import World


class CoordinatorLink:
    """The connection between a machine and one life of a coordinator process."""

    def __init__(self, world: World, machine: Machine, host: Host) -> None:
        self._world, self.machine, self.host = world, machine, host
        self._life = host.life
        self._up = Link(world, self._deliver_up, (machine.name, host.name))
        self._down = Link(world, partial(machine.on_message, self), (host.name, machine.name))
        self.send_up, self.send_down = self._up.send, self._down.send  # None is the end of the link

    def _deliver_up(self, message: Any) -> None:
        host = self.host
        if host.alive and host.life == self._life:
            host.on_message(self, message)

    def reset(self) -> None:
        """Each end learns of it in its own time; messages on their way are lost."""
        self._up.cut = self._down.cut = True
        self._world.after(1.0, partial(self._deliver_up, None))
        self._world.after(1.0, partial(self.machine.on_message, self, None))


class Host:
    def __init__(self, world: World, name: str) -> None:
        self._world, self.name = world, name
        self.clock = world.local_clock()
        self.alive, self.life = False, 0
        self.leadership: Leadership
        self.connections: dict[str, CoordinatorLink] = {}
        self._wakes_at: float | None = None
        self._stalled_until = 0.0

    def start(self, config: CoordinatorConfig, *, founds: bool) -> None:
        self.alive, self.life = True, self.life + 1
        self.leadership = Leadership(config, name=f"{self.name}.{self.life}", founds=founds)
        self._wakes_at = None
        self._world.log(self.name, "starts", {"life": self.life})

    def wake(self) -> None:
        self.feed(Tick())

    def die(self, *, quietly: bool = False) -> None:
        """The operating system closes its links. Without power (`quietly`) only its silence tells."""
        if self.alive:
            self.alive = False
            self._world.log("world", "coordinator dies", {"host": self.name, "leads": self.leadership.is_leader})
            for connection in self.connections.values():
                if not quietly:
                    connection.send_down(None)
            self.connections.clear()

    def stall(self, seconds: float) -> None:
        """The process does not run for so long. Then it is told so first, and everything that has come in after
        that."""
        self._world.log("world", "coordinator stalls", {"host": self.name, "seconds": seconds})
        self._stalled_until = self._world.clock.now + seconds
        self._world.clock.at(self._stalled_until, lambda: self.feed(Stalled(seconds=seconds)))

    # --- the driver of the core --------------------------------------------------------------------------------------

    def on_message(self, connection: CoordinatorLink, message: Any) -> None:
        if self._world.clock.now < self._stalled_until:
            life = self.life
            self._world.clock.at(
                self._stalled_until, lambda: self.on_message(connection, message) if life == self.life else None
            )
            return
        node = connection.machine.name
        if message is None:
            if self.connections.get(node) is connection:
                del self.connections[node]
                self.feed(LinkLost(node=node, reason="closed"))
            return
        known = self.connections.get(node)
        if known is not connection and connection not in self._world.closed_connections:
            self._accept(connection, known)
        if self.connections.get(node) is connection:
            self._world.checkers.on_report(message)
            self.feed(FromAgent(node=node, message=message))

    def _accept(self, connection: CoordinatorLink, known: CoordinatorLink | None) -> None:
        """A node that connects again has left its last connection, whether that was noticed or not. Another machine of
        the same name has to wait until the first is known to be gone."""
        if known is not None and known.machine is not connection.machine:
            refused = JoinRefused(reason="a node of that name is in the job already")
            connection.send_down(Order(term=self.leadership.term, message=refused))
            self._world.closed_connections.add(connection)
            return
        if known is not None:
            self._world.closed_connections.add(known)
            del self.connections[known.machine.name]
            self.feed(LinkLost(node=known.machine.name, reason="superseded"))
        self.connections[connection.machine.name] = connection

    def feed(self, input: Any) -> None:
        world = self._world
        if not self.alive or world.outcome is not None:
            return
        effects = self.leadership.step(input, now=self.clock.now)
        self.leadership.check()
        world.note_leader(self)
        for effect in effects:
            self._perform(effect)
        self._set_timer()

    def _perform(self, effect: CoordinatorEffect) -> None:
        match effect:
            case ToAgent(node=node, term=term, message=message):
                self._world.checkers.on_order_sent(self, node, message)
                if node in self.connections:
                    self.connections[node].send_down(Order(term=term, message=message))
            case Drop(node=node):
                if (connection := self.connections.pop(node, None)) is not None:
                    self._world.closed_connections.add(connection)
                    connection.send_down(None)
            case Emit(event=event):
                detail = {"rank": event.rank, "step": event.step, "node": event.node, **event.detail}
                self._world.log(self.name, event.what, {"gen": event.generation, **detail})
                self._world.on_event_of(self, event.what, detail)
            case Finish():
                self._world.finished(self, effect)
            case _ as never:
                assert_never(never)

    def _set_timer(self) -> None:
        wake = self.leadership.deadline()
        if wake is not None and (self._wakes_at is None or wake < self._wakes_at):
            self._wakes_at = wake
            self._world.clock.at(self.clock.true(wake), partial(self._tick, self.life, wake))

    def _tick(self, life: int, wake: float) -> None:
        if not self.alive or life != self.life or self._wakes_at != wake:
            return
        self._wakes_at = None
        if self._world.clock.now >= self._stalled_until:
            self.feed(Tick())
            self._set_timer()

    @property
    def coordinator(self) -> Coordinator:
        return self.leadership.coordinator
