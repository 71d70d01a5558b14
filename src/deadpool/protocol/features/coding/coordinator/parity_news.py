"""News of parities: one is whole, one is damaged, or one is begun anew because it has no room any more."""

from __future__ import annotations

from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.seams import CoordinatorCore, CoordinatorPart
from deadpool.protocol.identity import FeatureMessage
from deadpool.protocol.messages import CopyLost, Encoded


class ParityNews(CoordinatorPart):
    def __init__(self, core: CoordinatorCore) -> None:
        self._job, self._ending = core.job, core.ending

    def on_message(self, member: Member, message: FeatureMessage, now: float) -> None:
        if isinstance(message, Encoded):
            untenable = self._job.commits.on_stored_together(message.ranks, member.node, message.version)
            self._ending.end_if(untenable)

    def on_joint_copy_lost(self, member: Member, lost: CopyLost) -> None:
        if lost.dropped:
            self._on_dropped(lost)
        else:
            self._on_damaged(member, lost)

    def _on_damaged(self, member: Member, damaged: CopyLost) -> None:
        """Counts it as lost. Its node drops it before it is asked again what it has, and says so."""
        out, step = self._job.out, damaged.version.number
        out.emit("copy_damaged", node=damaged.node, rank=damaged.rank, step=step, found_by=member.node, parity=True)
        self._lose(damaged)
        if damaged.node in self._job.members and damaged.node != member.node:
            out.send(damaged.node, damaged)

    def _on_dropped(self, dropped: CopyLost) -> None:
        """By its node, which lacks it: the other members send their pieces again, unless the group is a former one."""
        job = self._job
        if not job.seats or not self._lose(dropped):
            return
        job.out.emit("parity_begun_anew", node=dropped.node, rank=dropped.rank, step=dropped.version.number)
        for position in job.commits.placement.held_by(job.layout.position_of(dropped.rank)):
            node = job.seats[position]
            if node in job.members and node != dropped.node:
                job.out.send(node, dropped)

    def _lose(self, lost: CopyLost) -> bool:
        """Whether it was one that commits count on."""
        assert lost.group is not None
        return self._job.commits.lose_joint(lost.group, lost.rank, lost.node, lost.version)
