"""Under which coordinator a node serves: one welcomes it, is lost, is followed by another; and how it asks to leave.
What was promised to whom is kept by `term_guard.py`."""

from __future__ import annotations

from deadpool.protocol.agent.coordinator_liveness import Verdict
from deadpool.protocol.agent.heartbeat import Vitals
from deadpool.protocol.agent.recorded_collectives import NodeRecordings
from deadpool.protocol.agent.state import Station
from deadpool.protocol.agent.term_guard import Allegiance
from deadpool.protocol.effects import LookElsewhere
from deadpool.protocol.identity import NO_GENERATION
from deadpool.protocol.messages import Leave, Parting, Proceed, Settings, Stand, Welcome


class Service:
    def __init__(
        self,
        station: Station,
        allegiance: Allegiance,
        *,
        vitals: Vitals,
        recordings: NodeRecordings,
        rehearsals: int,
        standby: int,
    ) -> None:
        """So many trainers are kept: `rehearsals` for each seat, and `standby` more."""
        self._station, self._allegiance, self._vitals, self._recordings = station, allegiance, vitals, recordings
        self._reach, self._rehearsals, self._standby = allegiance.reach, rehearsals, standby
        self._standing = False  # trainers were told to stop at a version
        self._leave: Leave | None = None  # said, and to be said again to whoever comes next

    # --- coordinators come and go ------------------------------------------------------------------------------------

    def welcomed(self, welcome: Welcome, now: float) -> None:
        station, settings, first = self._station, welcome.settings, self._station.settings is None
        self._allegiance.pledge(welcome)
        station.settings = settings
        station.store.welcomed(settings)
        self._vitals.welcomed(settings, now)
        if first:
            self._hire(settings)
            return
        self.proceed()
        self._report_for_takeover()
        if self._leave is not None:
            station.tell_coordinator(self._leave)

    def _hire(self, settings: Settings) -> None:
        for _ in range(settings.layout.per_node * self._rehearsals + self._standby):
            self._station.crew.hire()

    def _report_for_takeover(self) -> None:
        station = self._station
        if station.durable is not None:
            station.tell_coordinator(station.durable)
        if station.generation == NO_GENERATION:
            station.report_trainers()  # all there is to say
            return
        takeover_report = self._allegiance.witness.report(
            station.generation,
            fenced=station.fenced,
            permit=station.store.permit,
            inventory=station.store.inventory(()),
            trainers=station.crew.infos(),
        )
        station.tell_coordinator(takeover_report)
        for trainer in station.crew.seated():
            if trainer.rank is not None and (recordings := self._recordings.of(trainer.rank)) is not None:
                station.tell_coordinator(recordings)

    def lost(self, now: float) -> None:
        self._reach.lost(now)
        self.proceed()

    def look(self, now: float) -> None:
        match self._reach.look(now):
            case Verdict.SILENT:
                self._station.tell_coordinator(Parting())
                self._station.effects.append(LookElsewhere(reason="the coordinator is silent"))
            case Verdict.ISOLATED:
                self._isolate()
            case Verdict.FORSAKEN:
                reason = f"node {self._station.node} found no coordinator, also after it had ended its trainers"
                self._station.end(reason, failed=True)

    def _isolate(self) -> None:
        """Rule 19, returning nodes. The others have gone on without these ranks, or wait for them in vain; what they
        left is kept."""
        station = self._station
        assert station.settings is not None
        reason = f"no coordinator for {station.settings.isolation_s:g} s"
        station.emit("isolated", reason=reason)
        for trainer in station.crew.seated():
            station.crew.kill(trainer, reason)

    # --- leaving on purpose ------------------------------------------------------------------------------------------

    def stand(self, order: Stand) -> None:
        self._standing = True
        self._station.crew.tell_seated(order)

    def proceed(self) -> None:
        """Also when the coordinator is gone that asked them to stand: nobody else knows what for."""
        if self._standing:
            self._standing = False
            self._station.crew.tell_seated(Proceed(generation=self._station.generation))

    def fence(self) -> None:
        self._standing = False

    def ask_to_leave(self, reason: str) -> None:
        """At once, if it is asked twice, or if there is nobody who could take over what is here."""
        if self._leave is not None or not self._reach.is_welcome:
            self._station.end(reason, failed=True)
            return
        self._leave = Leave(reason=reason)
        self._station.tell_coordinator(self._leave)
