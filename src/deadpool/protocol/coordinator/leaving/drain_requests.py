"""Requests to drain a node: by an operator, by the node itself when it is told to end, or because it is too slow.

This module decides whether and when a node may leave. How its ranks get to a spare is decided in `drain.py`, which a
fence and a plan need too; requests come before both, so the two do not share a file.
"""

from __future__ import annotations

from deadpool.protocol.coordinator.job import JobState, Phase
from deadpool.protocol.coordinator.leaving.drain import Drain, DrainAction, Drains
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.membership.membership import Membership
from deadpool.protocol.coordinator.membership.stragglers import Straggler
from deadpool.protocol.coordinator.recovery.faults import Fencing
from deadpool.protocol.messages import Shutdown


class DrainRequests:
    def __init__(self, job: JobState, drains: Drains, fencing: Fencing, membership: Membership) -> None:
        self._job, self._drains = job, drains
        self._fencing, self._membership = fencing, membership
        self._replaced: set[int] = set()  # positions that a straggler has been drained from without being asked

    # --- whether a node may leave now ---------------------------------------------------------------------------------

    def refusal(self, node: str) -> str | None:
        """Why this node cannot be drained now; None: it can."""
        job, members = self._job, self._job.members
        member = members.get(node)
        if member is None:
            return f"there is no node {node!r}: known are {', '.join(sorted(members))}"
        if self._leaves_at_once(member):
            return None
        if self._drains.current is not None:
            leaving = self._drains.current.node
            what = f"node {leaving} is being drained" if leaving is not None else "copies are being placed anew"
            return f"{what}: one after the other"
        if not job.can_drain:
            return f"the job is {job.phase.value}: ask again when it runs"
        if not any(each.is_spare for each in members.values()):
            start = "deadpool agent --spare --join HOST:PORT SCRIPT"
            return f"there is no spare to take the ranks of node {node}: start one with: {start}"
        return None

    def _leaves_at_once(self, member: Member) -> bool:
        """A spare simply leaves, but a spare that had a seat stays while a recovery may need its copies."""
        return member.is_spare and (self._job.can_drain or not member.has_run)

    def drain(self, node: str, reason: str, now: float) -> str | None:
        """Returns why not."""
        job, refusal = self._job, self.refusal(node)
        member = job.members.get(node)
        if refusal is not None or member is None:
            job.out.emit("drain_refused", node=node, reason=refusal)
        elif member.position is None:
            self._membership.dismiss(member, reason, now)
        else:
            self._drains.begin(member, reason, now)
        return refusal

    def replace_straggler(self, straggler: Straggler, now: float) -> None:
        """Where the user wants it, a node that is slow all the time is drained, once per position."""
        if not self._job.settings.replace_stragglers:
            return
        position = self._job.seats.index(straggler.node)
        if position not in self._replaced and self.refusal(straggler.node) is None:
            self._replaced.add(position)
            self.drain(straggler.node, straggler.text, now)

    # --- after every input --------------------------------------------------------------------------------------------

    def grant_leaves(self, now: float) -> None:
        """This comes before anything else may move ranks."""
        if self._job.leave_requests:
            self._grant_leave(now)

    def advance(self, now: float) -> None:
        job, drain = self._job, self._drains.current
        if drain is None or job.phase is not Phase.RUNNING:
            return
        if job.released:
            self._drains.give_up("the job comes to its end")
            return
        match self._drains.advance(now):
            case DrainAction.HAND_OVER:
                self._hand_over(drain, now)
            case DrainAction.DISMISS if drain.node is not None:
                member = job.members[drain.node]
                self._drains.forget()
                self._membership.dismiss(member, drain.reason, now)

    def _grant_leave(self, now: float) -> None:
        """A node that was told to end has some time, but not for ever. Where no node can take its ranks it is sent away
        at once, and is lost."""
        node = next(filter(self._can_decide, self._job.leave_requests), None)
        if node is None:
            return
        reason = self._job.leave_requests.pop(node)
        if (refusal := self.drain(node, reason, now)) is not None:
            self._job.out.send(node, Shutdown(reason=f"{reason}; not drained: {refusal}", failed=True))

    def _can_decide(self, node: str) -> bool:
        """A spare that never ran may leave at any time. The others leave one by one, and not in a recovery."""
        member = self._job.members[node]
        if member.leaving:
            return False
        return self._leaves_at_once(member) or (self._job.can_drain and self._drains.current is None)

    def _hand_over(self, drain: Drain, now: float) -> None:
        """A fence like any other, but no node is lost in it."""
        job = self._job
        if drain.node is None or drain.position is None:
            job.name_cause("protection")
            job.out.emit("reconfiguration", step=drain.number, reason=drain.reason)
            self._fencing.fence(now)
            return
        job.name_cause("growth" if drain.stays else "drain")
        ranks = list(job.layout.ranks_at(drain.position))
        job.out.emit("handover", node=drain.node, step=drain.number, reason=drain.reason, ranks=ranks)
        self._fencing.fence(now)
