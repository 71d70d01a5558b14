"""The door of a coordinator process: who is not in office stands for it, who is in office may be deposed. No I/O.

Every coordinator process of a job is alike. Nodes turn to the first one that they can reach; whoever is turned to by
enough of them becomes the coordinator of a new term, takes over what they report to and carries on (`recovered_view.py`). One
that hears of a higher term than its own, or cannot gather a majority, lets go of its nodes and stands again.

Terms are asked for by `election.py`; the coordinator itself, `coordinator.py`, knows nothing of all this.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from deadpool.protocol.coordinator.core import Coordinator
from deadpool.protocol.coordinator.deadlines import Deadlines
from deadpool.protocol.coordinator.election import Candidacy
from deadpool.protocol.coordinator.fault_history import Tolerance
from deadpool.protocol.coordinator.job import Phase
from deadpool.protocol.coordinator.outbox import Outbox
from deadpool.protocol.coordinator.recovered_view import take_over
from deadpool.protocol.effects import (
    CoordinatorEffect,
    CoordinatorInput,
    FromAgent,
    LinkLost,
    Stalled,
    StopAsked,
    Tick,
    ToAgent,
)
from deadpool.protocol.messages import Heartbeat, Join, Pulse, Settings, Shutdown, Welcome
from deadpool.protocol.topology import Schedule

FIRST_TERM = 1
PULSE = Pulse()
PULSE_SHARE = 0.35
"""Of the silence after which nodes would look elsewhere: two pulses may be late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Charter:
    """What every coordinator of this job would work by."""

    settings: Settings
    deadlines: Deadlines
    schedule: Schedule
    tolerance: Tolerance = field(default_factory=Tolerance)

    @property
    def is_alone(self) -> bool:
        """There is one place only where a coordinator can be found, so there is never more than one."""
        return len(self.settings.coordinators) <= 1


class Office:
    def __init__(self, charter: Charter, *, name: str, founds: bool) -> None:
        """`name` is this process's alone. `founds`: nobody was in office before, so it is at once."""
        self._charter, self._name = charter, name
        self._out = Outbox(FIRST_TERM)
        self._pulse_s = PULSE_SHARE * charter.settings.silence_s
        self._pulsed: dict[str, float] = {}  # when each node was last told that we are there
        self.coordinator = self._make_coordinator(FIRST_TERM)
        self.candidacy: Candidacy | None = None if founds else self._stand(FIRST_TERM)

    def _make_coordinator(self, term: int) -> Coordinator:
        charter = self._charter
        return Coordinator(
            settings=charter.settings,
            deadlines=charter.deadlines,
            schedule=charter.schedule,
            tolerance=charter.tolerance,
            term=term,
            name=self._name,
            alone=charter.is_alone,
        )

    def _stand(self, term: int) -> Candidacy:
        charter = self._charter
        return Candidacy(self._name, charter.settings.layout, alone=charter.is_alone, term=term)

    @property
    def in_office(self) -> bool:
        return self.candidacy is None

    @property
    def term(self) -> int:
        return self.candidacy.term if self.candidacy else self.coordinator.term

    # --- the contract of a core --------------------------------------------------------------------------------------

    def step(self, input: CoordinatorInput, *, now: float) -> list[CoordinatorEffect]:
        if self.candidacy is not None:
            effects = self._campaign(self.candidacy, input, now)
        elif isinstance(input, Stalled) and self._is_given_up(input.seconds):
            effects = self._let_go(f"stood still for {input.seconds:.1f} s", self.coordinator.members, now)
        elif isinstance(input, FromAgent) and isinstance(input.message, Join):
            effects = self._receive(input.node, input.message, now)
        else:
            effects = self.coordinator.step(input, now=now)
            if isinstance(input, FromAgent) and isinstance(input.message, Heartbeat):
                self._pulse(input.node, effects, now)
        if self.coordinator.phase is Phase.RESIGNED:
            effects += self._let_go("no majority of the nodes that ran", self.coordinator.members, now)
        elif self.coordinator.is_forsaken and self._charter.is_alone:
            effects += self._let_go("no node is heard any more", (), now)
        return effects

    def deadline(self) -> float | None:
        if self.candidacy is None:
            return self.coordinator.deadline()
        if self.candidacy.decides_at is not None:
            return self.candidacy.decides_at
        wakes = (self._given_up_at(self.candidacy), self.candidacy.short_at)
        return min((wake for wake in wakes if wake is not None), default=None)

    def check(self) -> None:
        self.coordinator.check()

    # --- in office ---------------------------------------------------------------------------------------------------

    def _pulse(self, node: str, effects: list[CoordinatorEffect], now: float) -> None:
        """As often as it takes not to be missed, and not at every heartbeat: to write is most of what one costs."""
        if now - self._pulsed.get(node, -math.inf) >= self._pulse_s and node in self.coordinator.members:
            self._pulsed[node] = now
            effects.append(ToAgent(node=node, term=self.coordinator.term, message=PULSE))

    def _is_given_up(self, stalled_s: float) -> bool:
        """Nobody waits for us for so long: our nodes have turned away, or are about to. If we heard that from them one
        by one, we would take them all for lost."""
        settings = self._charter.settings
        return stalled_s >= settings.silence_s - settings.heartbeat_s and self.coordinator.phase is not Phase.ENDED

    def _receive(self, node: str, join: Join, now: float) -> list[CoordinatorEffect]:
        """One that had a seat may say that something happened without us; else it was taken for lost, and is welcome
        like a new one: it will be a spare."""
        coordinator, footing = self.coordinator, join.footing
        if coordinator.phase is Phase.ENDED:
            return coordinator.step(FromAgent(node=node, message=join), now=now)
        if not footing.promise.allows(coordinator.term, self._name):
            reason = f"node {node} has promised term {footing.promise.term}"
            return self._let_go(reason, [node, *coordinator.members], now)
        if footing.position is not None and (coordinator.phase is Phase.FORMING or not coordinator.has_majority):
            return self._let_go(f"node {node} is part of a job already", [node, *coordinator.members], now)
        return coordinator.step(FromAgent(node=node, message=join), now=now)

    def _let_go(self, reason: str, nodes: Iterable[str], now: float) -> list[CoordinatorEffect]:
        """They will turn to whoever is the coordinator now. Perhaps that is we, again, in a new term; or nobody is
        left, and we hear of nothing any more."""
        self._out.generation, self._out.cause = self.coordinator.generation, f"term-{self.coordinator.term}"
        self._out.emit("stepped_down", term=self.coordinator.term, reason=reason)
        for node in nodes:
            self._out.drop(node)
        durable = self.coordinator.salvaging.durable
        self.candidacy = self._stand(self.coordinator.term + 1)
        self.candidacy.began_at = now
        self.coordinator = self._make_coordinator(self.candidacy.term)
        self.coordinator.salvaging.durable = durable
        return self._out.take()

    # --- not in office -----------------------------------------------------------------------------------------------

    def _campaign(self, candidacy: Candidacy, input: CoordinatorInput, now: float) -> list[CoordinatorEffect]:
        if candidacy.began_at is None:
            candidacy.began_at = now
        match input:
            case FromAgent(node=node, message=Join() as join):
                candidacy.come(node, join)
            case FromAgent():
                candidacy.hear(input)
                self._sustain(candidacy, input)
            case LinkLost(node=node):
                candidacy.leave(node)
            case Stalled(seconds=seconds):
                candidacy.excuse(seconds)
            case StopAsked(reason=reason):
                self._out.finish(f"not in office: {reason}", failed=False)
            case Tick():
                pass
        self._ask(candidacy)
        effects = self._out.take() + self._decide(candidacy, now)
        self._tell_if_short(candidacy, now)
        return effects + self._out.take()

    def _sustain(self, candidacy: Candidacy, said: FromAgent) -> None:
        """Once elected it is as good as in office: nobody should look elsewhere while the last ones are waited for."""
        if isinstance(said.message, Heartbeat) and candidacy.decides_at is not None:
            self._out.term = candidacy.term
            self._out.send(said.node, Pulse())

    def _ask(self, candidacy: Candidacy) -> None:
        wanted = candidacy.to_ask()
        self._out.term = candidacy.term
        welcome = Welcome(term=candidacy.term, settings=self._charter.settings, by=self._name)
        self._out.send_each(wanted, welcome)

    def _decide(self, candidacy: Candidacy, now: float) -> list[CoordinatorEffect]:
        """Who has not reported when the time is up is lost as usual."""
        if not candidacy.is_elected:
            candidacy.decides_at = None
            return self._form(candidacy, now) if candidacy.can_form else self._give_up(candidacy, now)
        if candidacy.decides_at is None:
            candidacy.decides_at = now + self._charter.deadlines.node_s
        if now < candidacy.decides_at and not candidacy.has_all:
            return []
        self.coordinator = self._make_coordinator(candidacy.term)
        self.candidacy = None
        recovered_view = take_over(self._charter.settings.layout, candidacy.joins, candidacy.takeover_reports)
        return self.coordinator.take_over(recovered_view, now=now) + self._catch_up(candidacy, now)

    def _given_up_at(self, candidacy: Candidacy) -> float | None:
        """Where there is a majority to be had, others may have it; else nobody but us can say that the job is over."""
        if candidacy.began_at is None or not self._charter.is_alone:
            return None
        return candidacy.began_at + self._charter.deadlines.spare_wait_s

    def _give_up(self, candidacy: Candidacy, now: float) -> list[CoordinatorEffect]:
        given_up_at = self._given_up_at(candidacy)
        if given_up_at is None or now < given_up_at:
            return []
        restart = self.coordinator.salvaging.restart()
        reason = f"none of the nodes that ran came back, and with them every copy is lost; {restart}"
        self._out.emit("failed", reason=reason)
        self._out.send_each(candidacy.joins, Shutdown(reason=reason, failed=True))
        self._out.finish(reason, failed=True)
        return self._out.take()

    def _tell_if_short(self, candidacy: Candidacy, now: float) -> None:
        """Those who are here wait, too few to do anything: people may be able to help the others."""
        if self.candidacy is not candidacy or candidacy.has_told or not candidacy.waits_for_others:
            candidacy.short_at = None
        elif candidacy.short_at is None:
            candidacy.short_at = now + self._charter.deadlines.node_s
        elif now >= candidacy.short_at:
            candidacy.has_told, candidacy.short_at = True, None
            self._out.emit(
                "no_majority", reason="most of the nodes that ran do not answer", nodes=sorted(candidacy.joins)
            )

    def _form(self, candidacy: Candidacy, now: float) -> list[CoordinatorEffect]:
        """Whoever was in office before did not live to make a plan."""
        self.coordinator = self._make_coordinator(candidacy.term)
        self.candidacy = None
        effects: list[CoordinatorEffect] = []
        for node, join in candidacy.joins.items():
            effects += self.coordinator.step(FromAgent(node=node, message=join), now=now)
        return effects + self._catch_up(candidacy, now)

    def _catch_up(self, candidacy: Candidacy, now: float) -> list[CoordinatorEffect]:
        """What was said while others were waited for."""
        return [effect for said in candidacy.news for effect in self.coordinator.step(said, now=now)]
