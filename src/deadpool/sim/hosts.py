"""The places where coordinators run: processes that die, start again with nothing, stall, and are cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deadpool.protocol.coordinator import Coordinator
from deadpool.protocol.effects import Drop, Emit, Finish, FromAgent, LinkLost, Stalled, Tick, ToAgent
from deadpool.protocol.messages import Order
from deadpool.protocol.office import Charter, Office
from deadpool.sim.clock import Link

if TYPE_CHECKING:
    from deadpool.sim.machine import Machine
    from deadpool.sim.world import World


class Connection:
    """Between a machine and one life of a coordinator process. What was lost of it is not made up for: it is broken."""

    def __init__(self, world: World, machine: Machine, host: Host) -> None:
        self._world, self.machine, self.host = world, machine, host
        self._life = host.life
        self._broken = {True: False, False: False}
        self._up = Link(world.clock, world.rng, world.latency_s, lambda message: self._arrive(message, upwards=True))
        self._down = Link(world.clock, world.rng, world.latency_s, lambda message: self._arrive(message, upwards=False))

    def send_up(self, message: Any) -> None:
        """None is the end of the link."""
        self._up.send(message)

    def send_down(self, message: Any) -> None:
        self._down.send(message)

    def _arrive(self, message: Any, *, upwards: bool) -> None:
        ends = (self.machine.name, self.host.name) if upwards else (self.host.name, self.machine.name)
        self._broken[upwards] |= ends in self._world.cuts
        if self._broken[upwards]:
            return
        if not upwards:
            self.machine.hear(self, message)
        elif self.host.alive and self.host.life == self._life:
            self.host.hear(self, message)


class Host:
    def __init__(self, world: World, name: str) -> None:
        self._world, self.name = world, name
        self.alive, self.life = False, 0
        self.office: Office
        self._connections: dict[str, Connection] = {}
        self._wakes_at: float | None = None
        self._stalled_until = 0.0

    def start(self, charter: Charter, *, founds: bool) -> None:
        self.alive, self.life = True, self.life + 1
        self.office = Office(charter, name=f"{self.name}.{self.life}", founds=founds)
        self._wakes_at = None
        self._world.tell(self.name, "starts", {"life": self.life})

    def begin(self) -> None:
        self.feed(Tick())

    def die(self) -> None:
        """The system closes its links, as far as that can be heard."""
        if self.alive:
            self.alive = False
            self._world.tell("world", "coordinator dies", {"host": self.name, "in_office": self.office.in_office})
            for connection in self._connections.values():
                connection.send_down(None)
            self._connections.clear()

    def stall(self, seconds: float) -> None:
        """Nothing is read or said for so long; then everything at once, and that it was late is said first."""
        self._world.tell("world", "coordinator stalls", {"host": self.name, "seconds": seconds})
        self._stalled_until = self._world.clock.now + seconds
        self._world.clock.at(self._stalled_until, lambda: self.feed(Stalled(seconds=seconds)))

    # --- the driver of the office ------------------------------------------------------------------------------------

    def hear(self, connection: Connection, message: Any) -> None:
        if self._world.clock.now < self._stalled_until:
            life = self.life
            self._world.clock.at(
                self._stalled_until, lambda: self.hear(connection, message) if life == self.life else None
            )
            return
        node = connection.machine.name
        if message is None:
            if self._connections.get(node) is connection:
                del self._connections[node]
                self.feed(LinkLost(node=node, reason="closed"))
            return
        if self._is_first_word(connection, node):
            self._connections[node] = connection
        if self._connections.get(node) is connection:
            self._world.checkers.heard(message)
            self.feed(FromAgent(node=node, message=message))

    def _is_first_word(self, connection: Connection, node: str) -> bool:
        """A node that comes anew has left its last connection, whatever we have heard of that."""
        known = self._connections.get(node)
        if known is connection or connection in self._world.over:
            return False
        if known is not None:
            self._world.over.add(known)
            del self._connections[node]
            self.feed(LinkLost(node=node, reason="superseded"))
        return True

    def feed(self, input: Any) -> None:
        if not self.alive or self._world.outcome is not None:
            return
        effects = self.office.step(input, now=self._world.clock.now)
        self.office.check()
        self._world.took_office(self)
        for effect in effects:
            self._perform(effect)
        self._arm()

    def _perform(self, effect: Any) -> None:
        match effect:
            case ToAgent(node=node, term=term, message=message):
                self._world.checkers.said(self, message)
                if node in self._connections:
                    self._connections[node].send_down(Order(term=term, message=message))
            case Drop(node=node):
                if (connection := self._connections.pop(node, None)) is not None:
                    self._world.over.add(connection)
                    connection.send_down(None)
            case Emit(event=event):
                detail = {"rank": event.rank, "step": event.step, "node": event.node, **event.detail}
                self._world.tell(self.name, event.what, {"gen": event.generation, **detail})
                self._world.look_at(self, event.what, event.detail)
            case Finish():
                self._world.finished(self, effect)

    def _arm(self) -> None:
        wake = self.office.deadline()
        if wake is not None and (self._wakes_at is None or wake < self._wakes_at):
            self._wakes_at = wake
            life = self.life
            self._world.clock.at(wake, lambda: self._tick(life))

    def _tick(self, life: int) -> None:
        now = self._world.clock.now
        if not self.alive or life != self.life or self._wakes_at is None or now < self._wakes_at:
            return
        self._wakes_at = None
        if now >= self._stalled_until:
            self.feed(Tick())
            self._arm()

    @property
    def coordinator(self) -> Coordinator:
        return self.office.coordinator
