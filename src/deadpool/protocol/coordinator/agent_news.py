"""What agents tell the coordinator: each message goes to the part that decides what follows from it.

Nothing counts that a node says which is no member, or that belongs to a generation that is over. Both are dropped here,
once, so that no handler has to think of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

from deadpool.protocol.coordinator.audit import RecoveryAudit
from deadpool.protocol.coordinator.job import JobState, Phase
from deadpool.protocol.coordinator.leaving.drain import Drains
from deadpool.protocol.coordinator.leaving.drain_requests import DrainRequests
from deadpool.protocol.coordinator.leaving.ending import Ending
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.membership.membership import Membership
from deadpool.protocol.coordinator.membership.reachability import CutOff, Reachability
from deadpool.protocol.coordinator.membership.run_monitor import RunMonitor
from deadpool.protocol.coordinator.recovery.faults import Faults, Fencing
from deadpool.protocol.coordinator.recovery.rehearsals import Rehearsals
from deadpool.protocol.coordinator.recovery.resumption import Resumption
from deadpool.protocol.coordinator.seams import CoordinatorParts
from deadpool.protocol.identity import FeatureMessage
from deadpool.protocol.messages import (
    AgentMessage,
    CopyLost,
    Digested,
    Disconnecting,
    Ended,
    FenceAck,
    Finished,
    Heartbeat,
    Join,
    Leave,
    Missed,
    NodeConnected,
    NodePrepared,
    Probed,
    Recording,
    Report,
    Salvaged,
    Sealed,
    Standing,
    Stored,
    TakeoverReport,
    TrainerInfo,
    TrainerLost,
    Trainers,
    Unavailable,
)
from deadpool.protocol.schemes import RankGroup


class AgentNews:
    def __init__(
        self,
        job: JobState,
        *,
        membership: Membership,
        faults: Faults,
        fencing: Fencing,
        resumption: Resumption,
        rehearsals: Rehearsals,
        drains: Drains,
        drain_requests: DrainRequests,
        monitor: RunMonitor,
        reachability: Reachability,
        audit: RecoveryAudit,
        ending: Ending,
        features: CoordinatorParts,
    ) -> None:
        self._job, self._commits = job, job.commits
        self._membership, self._faults, self._fencing = membership, faults, fencing
        self._resumption, self._rehearsals, self._ending = resumption, rehearsals, ending
        self._drains, self._drain_requests = drains, drain_requests
        self._monitor, self._reachability, self._audit = monitor, reachability, audit
        self._features = features
        self._frequent: dict[type, Callable[[Member, Any, float], None]] = {
            Heartbeat: self._on_heartbeat,
            Sealed: self._on_sealed,
            Stored: self._on_stored,
            FenceAck: fencing.on_ack,
            NodePrepared: resumption.on_prepared,
            NodeConnected: resumption.on_connected,
        }
        """What comes from every node at once, or all the time: `match` takes microseconds to find its case."""

    def on_message(self, node: str, message: AgentMessage, now: float) -> None:
        if isinstance(message, Join):
            self._membership.join(node, message, now)
            return
        member = self._job.members.get(node)
        if member is None:
            return  # it is fenced out already
        member.heard = now
        generation = getattr(message, "generation", None)
        if generation is not None and generation != self._job.generation:
            return  # of a generation that is over
        if (handle := self._frequent.get(type(message))) is not None:
            handle(member, message, now)
            return
        match message:
            case FeatureMessage():
                for part in self._features:
                    part.on_message(member, message, now)
            case Trainers(trainers=trainers):
                self._on_trainers(member, trainers)
            case Recording():
                self._rehearsals.on_recording(member, message)
            # copies, while the job runs
            case Missed(rank=rank, number=number, reason=reason):
                self._drains.on_missed(rank, number)
                self._commits.on_missed(rank, number, reason)
                self._audit.on_missed(number)
                self._monitor.interval_chooser.on_missed(message)
            case CopyLost(group=RankGroup()):
                for part in self._features:
                    part.on_joint_copy_lost(member, message)
            case CopyLost(dropped=True):
                self._on_dropped(message)
            case CopyLost():
                self._on_copy_lost(member, message)
            case Digested():
                self._audit.on_digested(message)
            # a recovery, in its order
            case TrainerLost():
                self._faults.on_trainer_lost(member, message, now)
            case Probed():
                self._move_ranks(self._reachability.on_probed(member, message, now), now)
            # ranks that stop, nodes that leave, the end
            case Standing(rank=rank, number=number):
                self._drains.on_standing(rank, number)
            case Disconnecting():
                self._job.silent.fell_silent(node)
            case Unavailable(reason=reason):
                self._on_unavailable(member, reason, now)
            case Leave(reason=reason):
                self._job.request_leave(node, reason)
            case Finished():
                self._resumption.on_finished(message)
            case Ended():
                self._resumption.on_ended(message)
            case Salvaged() if self._job.phase is Phase.SALVAGING:
                self._ending.on_salvaged(node, message)
            case TakeoverReport(trainers=trainers):
                self._on_trainers(member, trainers)  # of a spare whose report came after the takeover
            case Report():
                pass  # it is for the log
            case Salvaged():  # the job waits for it no longer
                self._job.out.emit("message_refused", node=node, message=type(message).__name__)
            case Heartbeat() | Sealed() | Stored() | FenceAck() | NodePrepared() | NodeConnected():
                raise AssertionError(f"{type(message).__name__} is one of the frequent ones")
            case _ as never:
                assert_never(never)

    def _on_heartbeat(self, member: Member, beat: Heartbeat, now: float) -> None:
        straggler = self._monitor.on_heartbeat(member, beat, now)
        if straggler is not None:
            self._drain_requests.replace_straggler(straggler, now)
        if (hang := self._monitor.hang.detect(now)) is not None:
            self._faults.on_hang(hang, now)
        for part in self._features:
            part.look(now)
        self._audit.look(now)
        self._move_ranks(self._reachability.check(now), now)

    def _on_sealed(self, member: Member, sealed: Sealed, now: float) -> None:
        seal = sealed.copy.seal
        self._drains.on_sealed(seal.rank, seal.version.number)
        self._audit.on_sealed(seal)
        self._ending.end_if(self._commits.on_sealed(sealed.copy))

    def _on_stored(self, member: Member, stored: Stored, now: float) -> None:
        self._ending.end_if(self._commits.on_stored(stored.rank, member.node, stored.version))

    def _move_ranks(self, cut_off: list[CutOff], now: float) -> None:
        """Moves the ranks of nodes that live, as far as is known: they may come back, with copies."""
        job = self._job
        for each in cut_off:
            if job.phase is not Phase.ENDED:
                job.silent.fell_silent(each.node)
                job.cut_off.add(each.node)
                self._membership.lose_node(each.node, each.reason, now)

    def _on_unavailable(self, member: Member, reason: str, now: float) -> None:
        """The spare was perhaps about to get ranks: then the next one is told, as a fault would tell it anyway."""
        job, generation = self._job, self._job.generation
        self._membership.on_unavailable(member, reason, now)
        if job.phase is Phase.FENCING and job.generation == generation:
            self._fencing.name_newcomers()

    def _on_trainers(self, member: Member, trainers: tuple[TrainerInfo, ...]) -> None:
        member.note_trainers(trainers)
        self._job.vacancies.on_trainers(trainers)
        if self._job.phase is Phase.RUNNING:
            self._rehearsals.assign_all()

    def _on_copy_lost(self, member: Member, damaged: CopyLost) -> None:
        """Counts a damaged copy as lost. Its node drops it before it is asked again what it has, and says so."""
        out, step = self._job.out, damaged.version.number
        out.emit("copy_damaged", node=damaged.node, rank=damaged.rank, step=step, found_by=member.node)
        self._commits.lose_copy(damaged.rank, damaged.node, damaged.version)
        if damaged.node in self._job.members and damaged.node != member.node:
            out.send(damaged.node, damaged)

    def _on_dropped(self, dropped: CopyLost) -> None:
        """By its node, which lacks it: it is sent again."""
        job = self._job
        if not job.seats:
            return
        self._commits.lose_copy(dropped.rank, dropped.node, dropped.version)
        sender = job.seats[job.layout.position_of(dropped.rank)]
        if sender in job.members and sender != dropped.node:
            job.out.send(sender, dropped)
