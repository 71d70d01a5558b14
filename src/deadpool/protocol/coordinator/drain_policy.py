"""Who may leave on purpose, and when: nodes that are drained, that were told to end, that are too slow. How their ranks
get to a spare is `drain.py`'s."""

from __future__ import annotations

from deadpool.protocol.coordinator.drain import Departures, Drain, Next
from deadpool.protocol.coordinator.fencing import Fencing
from deadpool.protocol.coordinator.job import Job, Phase
from deadpool.protocol.coordinator.membership import Membership
from deadpool.protocol.coordinator.stragglers import StragglerWatch
from deadpool.protocol.messages import Shutdown


class Leaving:
    def __init__(
        self, job: Job, *, departures: Departures, stragglers: StragglerWatch, fencing: Fencing, membership: Membership
    ) -> None:
        self._job, self._departures, self._stragglers = job, departures, stragglers
        self._fencing, self._membership = fencing, membership

    def refusal(self, node: str) -> str | None:
        """Why this node cannot be drained now; None: it can."""
        job = self._job
        return self._departures.refusal(node, job.members, job.phase.value, running=self._can_drain)

    @property
    def _can_drain(self) -> bool:
        return self._job.phase is Phase.RUNNING and not self._job.released

    def let_leave(self, node: str, reason: str, now: float) -> str | None:
        """Returns why not."""
        job, refusal = self._job, self.refusal(node)
        member = job.members.get(node)
        if refusal is not None or member is None:
            job.out.emit("drain_refused", node=node, reason=refusal)
        elif member.position is None:
            self._membership.dismiss(member, reason, now)
        else:
            self._departures.begin(member, job.members, reason, now)
        return refusal

    def look(self, now: float) -> None:
        """After everything that was heard."""
        if self._departures.wishes:
            self._grant_wish(now)
        drain = self._departures.drain
        if drain is None or self._job.phase is not Phase.RUNNING:
            return
        if self._job.released:
            self._departures.give_up("the job comes to its end", self._job.members)
            return
        match self._departures.look(self._job.members, now):
            case Next.HAND_OVER:
                self._hand_over(drain, now)
            case Next.DISMISS:
                member = self._job.members[drain.node]
                self._departures.forget(self._job.members)
                self._membership.dismiss(member, drain.reason, now)

    def _grant_wish(self, now: float) -> None:
        """A node that was told to end has some time, but not for ever: where nobody can take its ranks, it goes at once
        and is lost."""
        wish = self._departures.next_wish(self._job.members, running=self._can_drain)
        if wish is not None and (refusal := self.let_leave(*wish, now)) is not None:
            self._job.out.send(wish[0], Shutdown(reason=f"{wish[1]}; not drained: {refusal}", failed=True))

    def _hand_over(self, drain: Drain, now: float) -> None:
        """A fence like any other, but nobody is lost in it."""
        job = self._job
        job.name_cause("drain")
        ranks = list(job.layout.ranks_at(drain.position))
        job.out.emit("handover", node=drain.node, step=drain.number, reason=drain.reason, ranks=ranks)
        self._fencing.fence(now)

    def look_for_stragglers(self, now: float) -> None:
        seats = self._job.seats
        straggler = self._stragglers.look(seats)
        if straggler is None or not self._job.settings.replace_stragglers:
            return
        position = seats.index(straggler.node)
        if position not in self._stragglers.replaced and self.refusal(straggler.node) is None:
            self._stragglers.replaced.add(position)
            self.let_leave(straggler.node, straggler.text, now)
