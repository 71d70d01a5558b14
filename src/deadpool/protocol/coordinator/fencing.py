"""The end of a generation: everybody is stopped, and says what it has."""

from __future__ import annotations

from deadpool.protocol.coordinator.drain import Departures
from deadpool.protocol.coordinator.hang import Hangs
from deadpool.protocol.coordinator.interval import Pace
from deadpool.protocol.coordinator.job import Job, Phase
from deadpool.protocol.coordinator.members import Member
from deadpool.protocol.coordinator.planning import Planning
from deadpool.protocol.coordinator.quarantine import Quarantine
from deadpool.protocol.coordinator.rehearsals import Rehearsals
from deadpool.protocol.coordinator.resumption import Resumption
from deadpool.protocol.coordinator.retry_limit import Setbacks
from deadpool.protocol.coordinator.silent_nodes import dismissal
from deadpool.protocol.coordinator.stragglers import StragglerWatch
from deadpool.protocol.messages import Fence, FenceAck, Inventory


class Fencing:
    def __init__(
        self,
        job: Job,
        *,
        pace: Pace,
        stragglers: StragglerWatch,
        departures: Departures,
        rehearsals: Rehearsals,
        hangs: Hangs,
        setbacks: Setbacks,
        quarantine: Quarantine,
        planning: Planning,
        resumption: Resumption,
    ) -> None:
        self._job, self._pace, self._stragglers, self._departures = job, pace, stragglers, departures
        self._rehearsals, self._hangs, self._setbacks, self._quarantine = rehearsals, hangs, setbacks, quarantine
        self._planning, self._resumption = planning, resumption

    def fence(self, now: float) -> None:
        job = self._job
        job.out.generation = job.generation.next(job.term)
        job.commits.fence()
        self._pace.fence()
        self._stragglers.fence()
        self._departures.fence()
        self._keep_who_is_needed()
        self._resumption.fence()
        job.enter(Phase.FENCING, now, job.deadlines.fence_s)
        for member in job.members.values():
            member.inventory = None
        job.out.send_each(job.members, Fence(generation=job.generation, cause=job.cause))
        job.out.emit("fence")
        self._hint_newcomers()
        self._planning.maybe_plan(now)

    def fence_in(self, node: str) -> None:
        """It has come while the others are stopped, or ran on without them."""
        self._job.out.send(node, Fence(generation=self._job.generation, cause=self._job.cause))

    def _keep_who_is_needed(self) -> None:
        """After further losses nobody gives up a seat without which a plan would have no majority."""
        job, drain = self._job, self._departures.drain
        member = job.members.get(drain.node) if drain is not None else None
        if member is not None and member.position is not None and not job.has_majority_without(member):
            self._departures.give_up("too few of the nodes that ran would be left", job.members)

    def _hint_newcomers(self) -> None:
        """Spares build for their rank while survivors are still unwinding."""
        for member, position in self._job.newcomers():
            self._rehearsals.hint(member, position)

    def acked(self, member: Member, ack: FenceAck, now: float) -> None:
        if member.inventory is None:
            member.inventory = ack.inventory
            for rank, found in ack.hung if member.position is not None else ():
                self._found_hung(member.node, rank, found, now)
        if self._job.is_stopping:
            self._planning.maybe_plan(now)
        elif member.position is None:
            self._take_back(member)

    def _found_hung(self, node: str, rank: int, found: str, now: float) -> None:
        if self._hangs.found(node, rank, found):
            self._setbacks.found(node, rank, found)
            self._quarantine.blame(node, f"rank {rank} hung: {found}", now)
            self._hint_newcomers()

    def _take_back(self, member: Member) -> None:
        """It was taken for lost while others went on, and is at rest now. It keeps what is still of use."""
        job, inventory = self._job, member.inventory or Inventory()
        copies = [f"{copy.seal.rank}:{copy.seal.version}" for copy in (*inventory.own, *inventory.held)]
        job.out.emit("returned", node=member.node, copies=copies)
        part = dismissal(job.generation, job.cause, job.commits, quarantined=member.quarantined)
        job.out.send(member.node, part)
