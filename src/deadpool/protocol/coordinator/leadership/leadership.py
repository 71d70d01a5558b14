"""Which process is the coordinator: a process that does not lead asks to be elected, one that leads may be deposed.

Every coordinator process of a job is alike. Nodes turn to the first one that they can reach. A process that enough
nodes turn to becomes the coordinator of a new term, takes over what they report (`takeover.py`) and carries on. A
process that hears of a higher term than its own, or cannot gather a majority, drops its nodes and asks again.

The terms are asked for in `election.py`. The coordinator itself, `core.py`, knows nothing of all this.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import assert_never

from deadpool.protocol.causes import EndCause
from deadpool.protocol.coordinator.core import Coordinator
from deadpool.protocol.coordinator.job import Phase
from deadpool.protocol.coordinator.leadership.election import Election
from deadpool.protocol.coordinator.leadership.takeover import recover_view
from deadpool.protocol.coordinator.outbox import CoordinatorConfig, Outbox
from deadpool.protocol.effects import CoordinatorEffect, ToAgent, earliest
from deadpool.protocol.identity import NO_GENERATION, Generation
from deadpool.protocol.inputs import (
    AuditAsked,
    CoordinatorInput,
    DrainAsked,
    FeatureInput,
    FromAgent,
    LinkLost,
    SchemeAsked,
    Stalled,
    StopAsked,
    Tick,
)
from deadpool.protocol.messages import Alive, Heartbeat, Join, Shutdown, Welcome

FIRST_TERM = 1
ALIVE = Alive()
PULSE_SHARE = 0.35
"""The share of the silence after which nodes would call another coordinator: two pulses may be late."""


class Leadership:
    def __init__(self, config: CoordinatorConfig, *, name: str, founds: bool) -> None:
        """`name` is this process's alone. `founds`: the job has had no coordinator yet, so this process leads at
        once."""
        self._config, self._name = config, name
        self.generation: Generation = NO_GENERATION  # that this process last led, for its events
        self.cause = ""
        self._out = Outbox(self)
        self._pulse_s = PULSE_SHARE * config.settings.silence_s
        self._pulsed: dict[str, float] = {}  # when each node was last told that the coordinator is there
        self.coordinator = Coordinator(config, term=FIRST_TERM, name=name)
        self.election: Election | None = None if founds else self._begin_election(FIRST_TERM)

    def _begin_election(self, term: int) -> Election:
        return Election(self._config, self._name, term)

    def _begin_term(self, term: int) -> None:
        """What features know beside the job, this process need not learn anew."""
        before, self.coordinator = self.coordinator, Coordinator(self._config, term=term, name=self._name)
        self.coordinator.features.follow(before.features)

    def _lead(self, term: int) -> None:
        self._begin_term(term)
        self.election = None

    @property
    def is_leader(self) -> bool:
        return self.election is None

    @property
    def term(self) -> int:
        return self.election.term if self.election else self.coordinator.term

    # --- the contract of a core ---------------------------------------------------------------------------------------

    def step(self, input: CoordinatorInput, *, now: float) -> list[CoordinatorEffect]:
        if self.election is None and isinstance(input, FromAgent):
            effects = self._on_message(input, now)
        else:
            effects = self._on_input(input, now)
        if self.coordinator.phase is Phase.RESIGNED:
            effects += self._step_down("no majority of the nodes that ran", self.coordinator.members, now)
        elif self.coordinator.is_cut_off and self._config.is_alone:
            effects += self._step_down("no node is heard any more", (), now)
        return effects

    def _on_message(self, said: FromAgent, now: float) -> list[CoordinatorEffect]:
        """Handles a message while this coordinator leads."""
        if isinstance(said.message, Join):
            return self._on_join(said.node, said.message, now)
        effects = self.coordinator.step(said, now=now)
        if isinstance(said.message, Heartbeat):
            self._pulse(said.node, effects, now)
        return effects

    def _on_input(self, input: CoordinatorInput, now: float) -> list[CoordinatorEffect]:
        if self.election is not None:
            return self._elect(self.election, input, now)
        if isinstance(input, Stalled) and self._is_given_up(input.seconds):
            return self._step_down(f"stood still for {input.seconds:.1f} s", self.coordinator.members, now)
        return self.coordinator.step(input, now=now)

    def deadline(self) -> float | None:
        if self.election is None:
            return self.coordinator.deadline()
        if self.election.decides_at is not None:
            return self.election.decides_at
        return earliest(self.election.hopeless_at, self.election.short_at)

    def check(self) -> None:
        self.coordinator.check()

    # --- while it leads -----------------------------------------------------------------------------------------------

    def _pulse(self, node: str, effects: list[CoordinatorEffect], now: float) -> None:
        """Tells a node that this coordinator lives, often enough for the node to go on listening, and not at every
        heartbeat: to write is most of what one costs."""
        if now - self._pulsed.get(node, -math.inf) >= self._pulse_s and node in self.coordinator.members:
            self._pulsed[node] = now
            effects.append(ToAgent(node=node, term=self.coordinator.term, message=ALIVE))

    def _is_given_up(self, stalled_s: float) -> bool:
        """No node waits for its coordinator for so long: all have turned away, or are about to. If this were heard from
        one after the other, each would be taken for lost."""
        settings = self._config.settings
        return stalled_s >= settings.silence_s - settings.heartbeat_s and self.coordinator.phase is not Phase.ENDED

    def _on_join(self, node: str, join: Join, now: float) -> list[CoordinatorEffect]:
        """A node that had a seat may bring news of what happened without this process. Else it was taken for lost, and
        joins like a new one: it will be a spare."""
        coordinator, footing = self.coordinator, join.footing
        if coordinator.phase is Phase.ENDED:
            return coordinator.step(FromAgent(node=node, message=join), now=now)
        if not footing.promise.allows(coordinator.term, self._name):
            reason = f"node {node} has promised term {footing.promise.term}"
            return self._step_down(reason, [node, *coordinator.members], now)
        if footing.position is not None and (coordinator.phase is Phase.FORMING or not coordinator.has_majority):
            return self._step_down(f"node {node} is part of a job already", [node, *coordinator.members], now)
        return coordinator.step(FromAgent(node=node, message=join), now=now)

    def _step_down(self, reason: str, nodes: Iterable[str], now: float) -> list[CoordinatorEffect]:
        """The nodes will turn to the coordinator that there is now. Perhaps that is this process again, in a new term;
        or no node is left, and none will call."""
        self.generation, self.cause = self.coordinator.generation, f"term-{self.coordinator.term}"
        self._out.emit("stepped_down", term=self.coordinator.term, reason=reason)
        for node in nodes:
            self._out.drop(node)
        self.election = self._begin_election(self.coordinator.term + 1)
        self.election.start(now)
        self._begin_term(self.election.term)
        return self._out.take()

    # --- while it does not lead ---------------------------------------------------------------------------------------

    def _elect(self, election: Election, input: CoordinatorInput, now: float) -> list[CoordinatorEffect]:
        election.start(now)
        match input:
            case FromAgent(node=node, message=Join() as join):
                election.on_join(node, join)
            case FromAgent():
                election.on_message(input, now)
                self._pulse_once_elected(election, input)
            case LinkLost(node=node):
                election.on_lost(node)
            case Stalled(seconds=seconds):
                election.discount_stall(seconds)
            case StopAsked(reason=reason):
                self._out.finish(EndCause.ASKED, f"not the coordinator: {reason}", failed=False)
            case FeatureInput():
                for part in self.coordinator.features:
                    part.on_input(input)  # for when it leads
            case Tick() | DrainAsked() | SchemeAsked() | AuditAsked():
                pass  # whoever asks is told that this process does not lead
            case _ as never:
                assert_never(never)
        self._ask_for_promises(election)
        effects = self._out.take() + self._decide(election, now)
        self._report_if_short(election, now)
        return effects + self._out.take()

    def _pulse_once_elected(self, election: Election, said: FromAgent) -> None:
        """Once elected it is as good as the coordinator: no node should call another one while it waits for the last
        reports."""
        if isinstance(said.message, Heartbeat) and election.decides_at is not None:
            self._out.send(said.node, ALIVE)

    def _ask_for_promises(self, election: Election) -> None:
        welcome = Welcome(term=election.term, settings=self._config.settings, by=self._name)
        self._out.send_each(election.to_ask(), welcome)

    def _decide(self, election: Election, now: float) -> list[CoordinatorEffect]:
        if election.is_decided(now):
            self._lead(election.term)
            alone_s = election.alone_s(now)
            view = recover_view(
                self._config.settings.layout,
                election.joins,
                election.reports,
                redundancy=self.coordinator.redundancy,
                alone_s=alone_s,
            )
            return self.coordinator.take_over(view, now=now) + self._catch_up(election, now)
        if election.decides_at is not None:
            return []  # it is elected, and waits for the last reports
        return self._form(election, now) if election.can_form else self._end_if_hopeless(election, now)

    def _end_if_hopeless(self, election: Election, now: float) -> list[CoordinatorEffect]:
        if election.hopeless_at is None or now < election.hopeless_at:
            return []
        restart = self.coordinator.fallback.advice()
        reason = f"none of the nodes that ran came back, and with them every copy is lost; {restart}"
        self._out.emit("failed", reason=reason)
        self._out.send_each(election.joins, Shutdown(reason=reason, failed=True))
        self._out.finish(EndCause.NOBODY_CAME_BACK, reason, failed=True)
        return self._out.take()

    def _report_if_short(self, election: Election, now: float) -> None:
        """The nodes that are here wait, and are too few to do anything: people may be able to help the others."""
        if self.election is election and election.is_short(now):
            nodes = sorted(election.joins)
            self._out.emit("no_majority", reason="most of the nodes that ran do not answer", nodes=nodes)

    def _form(self, election: Election, now: float) -> list[CoordinatorEffect]:
        """The coordinator before this one died before it made a plan."""
        self._lead(election.term)
        effects: list[CoordinatorEffect] = []
        for node, join in election.joins.items():
            effects += self.coordinator.step(FromAgent(node=node, message=join), now=now)
        return effects + self._catch_up(election, now)

    def _catch_up(self, election: Election, now: float) -> list[CoordinatorEffect]:
        """What nodes said while this process waited for others."""
        return [effect for said in election.news for effect in self.coordinator.step(said, now=now)]
