"""How a node finds its coordinator, and deals with it.

`CoordinatorSession`: a node's dealings with coordinators: one welcomes it, is lost, another follows; and how a node
asks to leave.

Which terms the node has promised to follow is kept in `coordinator_liveness.py`.

`CoordinatorSearch`: In which order a node connects to the coordinators it knows, and how long it waits for each.
Pure; shells connect.

All nodes try the same list from its beginning, so they meet at the same place. The leading coordinator welcomes a
node at once, so the first round is quick. A process that accepts and does not lead may be about to be elected by the
other nodes that come. So a node waits longer for the first that accepts in a round than for the rest, and longer
with every round in which one did. In the end most nodes wait at the same place at the same time, whatever their
phases.
"""

from __future__ import annotations

from collections.abc import Sequence

from deadpool.protocol.agent.leadership.coordinator_liveness import CoordinatorTimeout, TermGuard
from deadpool.protocol.agent.leadership.heartbeat import Heartbeats
from deadpool.protocol.agent.seams import AgentPart
from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.readiness import NodeRecordings
from deadpool.protocol.causes import EndCause
from deadpool.protocol.effects import LookElsewhere
from deadpool.protocol.identity import NO_GENERATION
from deadpool.protocol.messages import Disconnecting, Leave, Proceed, Settings, Stand, Welcome


class CoordinatorSession:
    def __init__(
        self,
        state: AgentState,
        guard: TermGuard,
        *,
        heartbeats: Heartbeats,
        features: Sequence[AgentPart],
        recordings: NodeRecordings,
        rehearsals: int,
        standby: int,
    ) -> None:
        """The node keeps `rehearsals` trainers for each seat, and `standby` more."""
        self._state, self._guard, self._heartbeats, self._recordings = state, guard, heartbeats, recordings
        self._features = features
        self._liveness, self._rehearsals, self._standby = guard.liveness, rehearsals, standby
        self._standing = False  # trainers were told to stop at a version
        self._leave: Leave | None = None  # sent, and to be sent again to the next coordinator

    # --- coordinators come and go ------------------------------------------------------------------------------------

    def on_welcome(self, welcome: Welcome, now: float) -> None:
        state, settings, first = self._state, welcome.settings, self._state.settings is None
        alone_s = self._liveness.alone_s(now)
        self._guard.promise(welcome)
        state.forget_told()
        state.settings = settings
        state.copies.configure(settings)
        self._heartbeats.begin(settings, now)
        self._recordings.forget_coordinator()
        for part in self._features:
            part.on_welcome()
        if first:
            self._start_trainers(settings)
            return
        self.proceed()
        self._report_for_takeover(alone_s)
        if self._leave is not None:
            state.tell_coordinator(self._leave)

    def _start_trainers(self, settings: Settings) -> None:
        for _ in range(settings.layout.per_node * self._rehearsals + self._standby):
            self._state.trainers.start()

    def _report_for_takeover(self, alone_s: float) -> None:
        state = self._state
        if state.current.generation == NO_GENERATION:
            state.report_trainers()  # there is nothing else to report
            return
        report = self._guard.record.report(
            state.current,
            permit=state.copies.permit,
            inventory=state.copies.inventory(()),
            trainers=state.trainers.infos(),
            alone_s=alone_s,
        )
        state.tell_coordinator(report)
        for trainer in state.trainers.seated():
            if trainer.rank is not None and (recording := self._recordings.of(trainer.rank)) is not None:
                state.tell_coordinator(recording)

    def on_link_lost(self, now: float) -> None:
        self._liveness.on_lost(now)
        self.proceed()

    def check_timeouts(self, now: float) -> None:
        match self._liveness.check_timeouts(now):
            case CoordinatorTimeout.SILENT:
                self._state.tell_coordinator(Disconnecting())
                self._state.effects.append(LookElsewhere(reason="the coordinator is silent"))
            case CoordinatorTimeout.ISOLATED:
                self._isolate()
            case CoordinatorTimeout.ABANDONED:
                reason = f"node {self._state.node} found no coordinator, also after it had ended its trainers"
                self._state.end(EndCause.NO_COORDINATOR, reason, failed=True)

    def _isolate(self) -> None:
        """Rule 19 (returning nodes): the other nodes have gone on without these ranks, or wait for them in
        vain. The copies stay."""
        state = self._state
        assert state.settings is not None
        reason = f"no coordinator for {state.settings.isolation_s:g} s"
        state.emit("isolated", reason=reason)
        for trainer in state.trainers.seated():
            state.trainers.kill(trainer, reason)

    # --- leaving on purpose ------------------------------------------------------------------------------------------

    def stand(self, order: Stand) -> None:
        self._standing = True
        self._state.trainers.tell_seated(order)

    def proceed(self) -> None:
        """Lets trainers that stand go on, also when the coordinator that asked them to stand is gone: no other one
        knows the reason.
        """
        if self._standing:
            self._standing = False
            self._state.trainers.tell_seated(Proceed(generation=self._state.current.generation))

    def fence(self) -> None:
        self._standing = False

    def ask_to_leave(self, reason: str) -> None:
        """The node ends at once if it is asked twice, or if there is no coordinator to move its ranks away."""
        if self._leave is not None or not self._liveness.has_coordinator:
            self._state.end(EndCause.ASKED, reason, failed=True)
            return
        self._leave = Leave(reason=reason)
        self._state.tell_coordinator(self._leave)


ROUNDS = ((0.2, 0.2), (1.0, 0.2), (3.0, 0.5), (6.0, 1.0), (12.0, 1.0))
"""How many times the usual silence a node waits for the first that accepts, and for each of the others."""
ONLY = 3.0
"""How many times the usual silence it waits where the list has one entry."""


class CoordinatorSearch:
    def __init__(self) -> None:
        self._next = self._round = 0
        self._accepted = False  # one has, in this round

    def start_over(self) -> None:
        """A coordinator was found."""
        self._next, self._accepted, self._round = 0, False, 0

    def choose(self, count: int) -> int:
        """Which of `count` to try now."""
        if self._next >= count:
            self._round += self._accepted  # where none accepted, no longer wait would have helped
            self._next, self._accepted = 0, False
        self._next += 1
        return self._next - 1

    def is_over(self, count: int) -> bool:
        """All were tried in this round: a pause is due."""
        return self._next >= count

    def accepted(self, count: int) -> float:
        """How many times the usual silence to wait for a welcome."""
        first, self._accepted = not self._accepted, True
        for_first, for_others = ROUNDS[min(self._round, len(ROUNDS) - 1)]
        return ONLY if count == 1 else for_first if first else for_others
