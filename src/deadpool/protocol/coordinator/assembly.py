"""How the parts of the coordinator know each other. Nothing is decided here.

A recovery goes through them in one direction, so they are made from its end to its beginning: each is given those that
come after it, and knows nothing of those before.
"""

from __future__ import annotations

from dataclasses import dataclass

from deadpool.protocol.coordinator.drain import Departures
from deadpool.protocol.coordinator.drain_policy import Leaving
from deadpool.protocol.coordinator.ending import Ending
from deadpool.protocol.coordinator.fault_history import Conduct, Tolerance
from deadpool.protocol.coordinator.faults import Faults
from deadpool.protocol.coordinator.fencing import Fencing
from deadpool.protocol.coordinator.hang import Hangs
from deadpool.protocol.coordinator.interval import Pace
from deadpool.protocol.coordinator.job import Job
from deadpool.protocol.coordinator.membership import Membership
from deadpool.protocol.coordinator.planning import Planning
from deadpool.protocol.coordinator.quarantine import Quarantine
from deadpool.protocol.coordinator.recorded_collectives import RecordingCache
from deadpool.protocol.coordinator.rehearsals import Rehearsals
from deadpool.protocol.coordinator.resumption import Resumption
from deadpool.protocol.coordinator.retry_limit import Setbacks
from deadpool.protocol.coordinator.salvage import Salvaging
from deadpool.protocol.coordinator.silent_nodes import Absences
from deadpool.protocol.coordinator.spares import SpareWatch
from deadpool.protocol.coordinator.stragglers import StragglerWatch
from deadpool.protocol.coordinator.takeover import Takeover
from deadpool.protocol.coordinator.timeouts import Overdue
from deadpool.protocol.coordinator.waiting import Waiting


class Books:
    """What is kept of the job, by whoever keeps it: they know the job and the outbox, and of each other nothing."""

    def __init__(self, job: Job, tolerance: Tolerance) -> None:
        self.conduct = Conduct(tolerance)
        self.absences = Absences()
        self.setbacks = Setbacks(job.commits)
        self.spares = SpareWatch(job.out)
        self.recordings = RecordingCache()
        self.rehearsals = Rehearsals(job.layout, self.recordings, job.out)
        self.pace = Pace(job.commits, job.settings, job.out)
        self.stragglers = StragglerWatch(job.layout, job.out)
        self.hangs = Hangs(job)
        self.salvaging = Salvaging(job.out)
        self.waiting = Waiting(job, self.absences)
        self.departures = Departures(
            job.layout,
            job.commits,
            job.out,
            patience_s=job.deadlines.prepare_s,
            choose_successor=job.heir_of,
            rehearse=lambda node, position: self.rehearsals.hint(job.members[node], position),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Those that are spoken to from outside."""

    overdue: Overdue
    leaving: Leaving
    membership: Membership
    faults: Faults
    fencing: Fencing
    resumption: Resumption
    ending: Ending
    takeover: Takeover


def assemble(job: Job, books: Books) -> Parts:
    ending = Ending(job, books.salvaging)
    resumption = Resumption(
        job,
        departures=books.departures,
        rehearsals=books.rehearsals,
        recordings=books.recordings,
        absences=books.absences,
        hangs=books.hangs,
        spares=books.spares,
        ending=ending,
    )
    planning = Planning(
        job,
        waiting=books.waiting,
        absences=books.absences,
        hangs=books.hangs,
        resumption=resumption,
        ending=ending,
    )
    quarantine = Quarantine(job, books.conduct, books.recordings)
    fencing = Fencing(
        job,
        pace=books.pace,
        stragglers=books.stragglers,
        departures=books.departures,
        rehearsals=books.rehearsals,
        hangs=books.hangs,
        setbacks=books.setbacks,
        quarantine=quarantine,
        planning=planning,
        resumption=resumption,
    )
    faults = Faults(
        job,
        setbacks=books.setbacks,
        hangs=books.hangs,
        quarantine=quarantine,
        fencing=fencing,
        planning=planning,
        resumption=resumption,
    )
    membership = Membership(
        job,
        conduct=books.conduct,
        absences=books.absences,
        setbacks=books.setbacks,
        recordings=books.recordings,
        spares=books.spares,
        departures=books.departures,
        salvaging=books.salvaging,
        faults=faults,
        fencing=fencing,
        planning=planning,
        ending=ending,
    )
    leaving = Leaving(
        job, departures=books.departures, stragglers=books.stragglers, fencing=fencing, membership=membership
    )
    overdue = Overdue(
        job,
        absences=books.absences,
        waiting=books.waiting,
        membership=membership,
        planning=planning,
        resumption=resumption,
        ending=ending,
    )
    takeover = Takeover(
        job,
        pace=books.pace,
        conduct=books.conduct,
        absences=books.absences,
        hangs=books.hangs,
        rehearsals=books.rehearsals,
        faults=faults,
        resumption=resumption,
        ending=ending,
    )
    return Parts(
        overdue=overdue,
        leaving=leaving,
        membership=membership,
        faults=faults,
        fencing=fencing,
        resumption=resumption,
        ending=ending,
        takeover=takeover,
    )
