"""Pushes of copies of a node's own ranks to their holders.

Copies go one at a time and in order, per rank and holder, because rule 16 (floor first) is a matter of order. A push
that fails is tried again. A version that a holder cannot store is reported as missed, unless a rollback would need it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from deadpool.protocol.agent.copies.slots import Slot, Slots
from deadpool.protocol.agent.phase import GenerationState
from deadpool.protocol.causes import Miss, Refusal
from deadpool.protocol.effects import AgentEffect, Contribute, PushCopy, ToCoordinator
from deadpool.protocol.identity import Layout, Version
from deadpool.protocol.inputs import PushFailed
from deadpool.protocol.messages import Copy, Holder, Missed, Plan, SlotRef
from deadpool.protocol.schemes import NodeGroup

PUSH_ATTEMPTS = 4


@dataclass(slots=True)
class PushQueue:
    """Versions of one rank that one holder is to get."""

    rank: int
    holder: Holder
    versions: deque[Version] = field(default_factory=deque)
    sending: tuple[Version, SlotRef] | None = None
    failures: int = 0
    awaits_retry: bool = False  # failed, and waits for the next heartbeat or permit
    repeat: bool = False  # the version that is being sent has to be sent again

    def set_versions(self, versions: Iterable[Version]) -> None:
        self.versions = deque(sorted(versions, key=lambda version: version.number))


class Pushes:
    def __init__(
        self,
        current: GenerationState,
        slots: Slots,
        out: list[AgentEffect],
        *,
        is_hashing_older: Callable[[int, Version], bool],
    ) -> None:
        """`is_hashing_older`: a copy of the rank that is older than this version is about to be sealed here."""
        self._current, self._slots, self._out = current, slots, out
        self._is_hashing_older = is_hashing_older
        self.holders: tuple[Holder, ...] = ()
        self._group: NodeGroup | None = None  # of which the holders are the other members, in its order
        self._layout: Layout | None = None
        self.queues: dict[tuple[int, str], PushQueue] = {}
        self._damaged: set[tuple[int, Version]] = set()  # own copies that were dropped since the plan

    def fence(self) -> None:
        self.queues.clear()

    def adopt(self, plan: Plan, layout: Layout) -> None:
        self.holders, self._group, self._layout = plan.holders, plan.group, layout
        self._damaged.clear()

    def go(self, plan: Plan) -> None:
        """Copies that were lost with a node are replicated anew, floor first, before anything newer."""
        for order in plan.orders:
            for node, version in order.pushes:
                self._queue(order.rank, node).versions.append(version)
        for rank, version in sorted(self._damaged, key=lambda copy: (copy[0], copy[1].number)):
            self.abandon(rank, version)
        self.send_next()

    # --- what is to be sent ------------------------------------------------------------------------------------------

    def on_sealed(self, rank: int, version: Version) -> None:
        for holder in self.holders:
            queue = self._queue(rank, holder.node)
            queue.set_versions([*queue.versions, version])
        self.send_next()

    def push_again(self, rank: int, node: str, version: Version) -> None:
        """Sends a version again, before anything newer (rule 16, floor first)."""
        if any(holder.node == node for holder in self.holders):
            queue = self._queue(rank, node)
            queue.repeat = queue.sending is not None and queue.sending[0] == version
            queue.set_versions({*queue.versions, version})
            self.send_next()

    def abandon(self, rank: int, version: Version) -> None:
        """The node's own copy is damaged: no holder can get it, and what is newer must not wait for it."""
        self._damaged.add((rank, version))
        waiting = [queue for queue in self.queues.values() if queue.rank == rank and version in queue.versions]
        for queue in waiting:
            queue.versions.remove(version)
        if waiting:
            self._report_missed(rank, version, Miss.DAMAGED, "its copy is damaged")
        self.send_next()

    def _queue(self, rank: int, node: str) -> PushQueue:
        holder = next(h for h in self.holders if h.node == node)
        return self.queues.setdefault((rank, node), PushQueue(rank, holder))

    def retry(self) -> None:
        for queue in self.queues.values():
            queue.awaits_retry = False
        self.send_next()

    # --- sending -----------------------------------------------------------------------------------------------------

    def send_next(self) -> None:
        if not self._current.is_running:
            return
        for queue in self.queues.values():
            self._skip_expired(queue)
            if self._is_ready(queue):
                self._send(queue, self._slots.own[queue.rank].find(queue.versions[0]))

    def _is_ready(self, queue: PushQueue) -> bool:
        """Checksums may finish out of order, and nothing may overtake a floor that is captured anew."""
        if queue.sending is not None or not queue.versions or queue.awaits_retry:
            return False
        return not self._is_hashing_older(queue.rank, queue.versions[0])

    def _skip_expired(self, queue: PushQueue) -> None:
        """The holder would only throw away a version that the permit has passed."""
        while queue.versions and self._slots.is_expired(queue.versions[0]):
            queue.versions.popleft()

    def _send(self, queue: PushQueue, slot: Slot | None) -> None:
        """A floor that is still being fetched keeps its place at the head of the queue."""
        if slot is None or slot.copy is None:
            return
        slot.readers += 1
        queue.sending = (queue.versions[0], slot.ref)
        self._out.append(self._push_of(queue, slot.ref, slot.copy))

    def _push_of(self, queue: PushQueue, slot: SlotRef, copy: Copy) -> PushCopy | Contribute:
        holder, generation, full = queue.holder, self._current.generation, not copy.peers
        if self._group is None or self._layout is None:
            return PushCopy(slot=slot, copy=copy, holder=holder, generation=generation, full=full)
        group = self._group.of(queue.rank, self._layout)
        target = group.others(group.member_of(queue.rank))[self.holders.index(holder)]
        return Contribute(
            slot=slot, copy=copy, holder=holder, generation=generation, full=full, group=group, target=target
        )

    def on_ended(self, rank: int, node: str, version: Version, failure: PushFailed | None) -> None:
        """`failure` is None if the holder has stored it."""
        queue = self.queues.get((rank, node))
        if queue is None or queue.sending is None or queue.sending[0] != version:
            return  # of a generation that is over
        self._slots.own[rank].end_reading(queue.sending[1])
        if failure is not None and failure.refusal is Refusal.ALREADY_STORED:
            failure = None
        queue.sending, queue.awaits_retry = None, failure is not None
        queue.failures = 0 if failure is None else queue.failures + (failure.refusal is not Refusal.NO_ROOM)
        given_up = failure is not None and self._gives_up(queue, version, failure.refusal)
        done = failure is None and not queue.repeat
        queue.repeat = False
        if (done or given_up) and queue.versions and queue.versions[0] == version:
            queue.versions.popleft()
        if given_up:
            queue.failures = 0
            assert failure is not None
            reason = f"holder {node} did not store it: {failure.reason}"
            self._report_missed(rank, version, Miss.NOT_STORED, reason)
        self.send_next()

    def _gives_up(self, queue: PushQueue, version: Version, refusal: Refusal | None) -> bool:
        """What a rollback would need is offered for ever: nothing newer may go to a holder without it. A damaged copy
        is the exception: no rollback can use it, and only something newer helps."""
        permit = self._slots.permit
        is_floor = permit is not None and version == permit.watermark
        return queue.failures >= PUSH_ATTEMPTS and (refusal is Refusal.DAMAGED or not is_floor)

    def _report_missed(self, rank: int, version: Version, cause: Miss, reason: str) -> None:
        generation, number = self._current.generation, version.number
        missed = Missed(generation=generation, rank=rank, number=number, cause=cause, reason=reason)
        self._out.append(ToCoordinator(message=missed))
