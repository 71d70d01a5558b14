"""Nodes come and are lost, and so are trainers.

Who is with us is in `members`; whoever is not is fenced out, and nothing that it says counts.
"""

from __future__ import annotations

from deadpool.protocol.coordinator.drain import Departures
from deadpool.protocol.coordinator.ending import Ending
from deadpool.protocol.coordinator.fault_history import Conduct
from deadpool.protocol.coordinator.faults import Faults
from deadpool.protocol.coordinator.fencing import Fencing
from deadpool.protocol.coordinator.job import Job, Phase
from deadpool.protocol.coordinator.members import Member, natural
from deadpool.protocol.coordinator.planning import Planning
from deadpool.protocol.coordinator.recorded_collectives import RecordingCache
from deadpool.protocol.coordinator.retry_limit import Setbacks
from deadpool.protocol.coordinator.salvage import Salvaging
from deadpool.protocol.coordinator.silent_nodes import Absences
from deadpool.protocol.coordinator.spares import SpareWatch
from deadpool.protocol.identity import FOUNDING, Generation
from deadpool.protocol.messages import Inventory, Join, Refused, Shutdown, TrainerLost, Welcome


class Membership:
    def __init__(
        self,
        job: Job,
        *,
        conduct: Conduct,
        absences: Absences,
        setbacks: Setbacks,
        recordings: RecordingCache,
        spares: SpareWatch,
        departures: Departures,
        salvaging: Salvaging,
        faults: Faults,
        fencing: Fencing,
        planning: Planning,
        ending: Ending,
    ) -> None:
        self._job, self._conduct, self._absences, self._setbacks = job, conduct, absences, setbacks
        self._recordings, self._spares, self._departures, self._salvaging = recordings, spares, departures, salvaging
        self._faults, self._fencing, self._planning, self._ending = faults, fencing, planning, ending

    # --- nodes come --------------------------------------------------------------------------------------------------

    def join(self, node: str, join: Join, now: float) -> None:
        job, out = self._job, self._job.out
        if node in job.members:
            out.send(node, Refused(reason=f"a node named {node} is in the job already"))
            out.drop(node)
            return
        member = Member(node, join.incarnation, join.data, join.spare, heard=now, rack=join.rack)
        member.has_run = not join.footing.is_new
        member.quarantined = join.footing.quarantined or self._conduct.is_quarantined(node)
        job.members[node] = member
        self._absences.came_back(node)
        out.emit("joined", node=node, spare=join.spare or job.phase is not Phase.FORMING)
        out.send(node, Welcome(term=job.term, settings=job.settings, by=job.name))
        if job.phase is Phase.FORMING:
            self._maybe_form(now)  # no spare is looked for: who will have a seat is not seated yet
            return
        self._spares.look(job.members.values())
        if job.is_stopping or (job.phase is not Phase.SALVAGING and not join.footing.is_new):
            self._fencing.fence_in(node)

    def _maybe_form(self, now: float) -> None:
        """The first generation: no fence is needed where nobody holds anything yet."""
        job, positions = self._job, self._job.layout.positions
        if len(job.members) < positions:
            return
        ready = sorted((m for m in job.members.values() if not m.spare), key=lambda m: natural(m.node))
        if len(ready) < positions:
            return
        for position, member in enumerate(ready[:positions]):
            member.position, member.has_run = position, True
        for member in job.members.values():
            member.inventory = Inventory()
        job.out.generation, job.out.cause = Generation(job.term, FOUNDING), "start"
        job.quorum.pass_to(job.generation, [member.voter for member in ready[:positions]])
        self._planning.plan(now)

    # --- nodes go ----------------------------------------------------------------------------------------------------

    def lose_node(self, node: str, reason: str, now: float) -> None:
        job = self._job
        member = job.members.pop(node, None)
        if member is None:
            return
        job.out.drop(node)
        self._recordings.forget(node)
        job.commits.forget(node)
        self._salvaging.forget(node)
        self._departures.wishes.pop(node, None)
        if job.phase is Phase.SALVAGING:
            self._ending.maybe_close()
        elif member.position is None:
            job.out.emit("spare_lost", node=node, reason=reason)
            self._continue_without(now)
        else:
            ranks = list(job.layout.ranks_at(member.position))
            self._faults.arise(now, node=node, reason=reason, ranks=ranks, blamed=node)

    def lose_each(self, nodes: list[str], what: str, now: float) -> None:
        """Who did not do its part in time is treated as lost; one fault for each, the last one plans."""
        for node in nodes:
            if self._job.phase is not Phase.ENDED:  # a loss can be the one that ends the job
                self.lose_node(node, f"node {node} {what}", now)

    def dismiss(self, member: Member, reason: str, now: float) -> None:
        """It leaves on purpose, and has nothing that anybody needs."""
        node, out = member.node, self._job.out
        del self._job.members[node]
        self._recordings.forget(node)
        out.emit("left", node=node, reason=reason)
        out.send(node, Shutdown(reason=f"node {node} leaves: {reason}", failed=False))
        self._continue_without(now)

    def _continue_without(self, now: float) -> None:
        """A spare that is gone may have been the last one a fence waited for."""
        self._spares.look(self._job.members.values())
        if self._job.is_stopping:
            self._planning.maybe_plan(now)

    # --- trainers ----------------------------------------------------------------------------------------------------

    def lose_trainer(self, member: Member, lost: TrainerLost, now: float) -> None:
        job, node, rank, reason = self._job, member.node, lost.rank, lost.reason
        if rank is None:
            job.out.emit("trainer_lost", node=node, trainer=lost.trainer, reason=reason)
            return
        if job.is_stopping or job.phase is Phase.SALVAGING:
            return
        blamed = node if lost.trainer else None  # else no process has ended: something was not to be had
        if reason.startswith(("script:", "device:")) and (verdict := self._setbacks.bug(reason, node)):
            if not (verdict.follows_node and reason.startswith("device:") and job.has_healthy_spare):
                self._ending.end(f"rank {rank} failed {verdict.words}: {reason}", failed=True)
                return
            self._conduct.quarantine(node, f"the same error again on this node: {reason}")
            blamed = node
        self._faults.arise(now, node=node, rank=rank, reason=reason, ranks=[rank], blamed=blamed)
