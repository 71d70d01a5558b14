"""Copies of a node's own ranks on their way to their holders.

One at a time and in order, per rank and holder: rule 16 (floor first) is a matter of order. What fails is tried
again; what cannot be had there is said to be missed, unless a rollback would need it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from deadpool.protocol.agent.rank_slots import Slot
from deadpool.protocol.agent.slots import Shelves
from deadpool.protocol.effects import AgentEffect, PushCopy, ToCoordinator
from deadpool.protocol.identity import NO_GENERATION, Generation, Version
from deadpool.protocol.messages import Holder, Missed, Plan, SlotRef
from deadpool.protocol.seal import NOT_AS_SEALED

PUSH_ATTEMPTS = 4
ALREADY_STORED = "already stored"  # refused, and yet what the sender wanted
NO_ROOM = "no free slot"  # refused for now: the next permit brings room


@dataclass(slots=True)
class Lane:
    """Copies of one rank on their way to one holder."""

    rank: int
    holder: Holder
    queue: deque[Version] = field(default_factory=deque)
    sending: tuple[Version, SlotRef] | None = None
    failures: int = 0
    resting: bool = False  # failed, and waits for the next heartbeat or permit

    def line_up(self, versions: Iterable[Version]) -> None:
        self.queue = deque(sorted(versions, key=lambda version: version.number))


class Pushes:
    def __init__(
        self, shelves: Shelves, out: list[AgentEffect], *, is_older_coming: Callable[[int, Version], bool]
    ) -> None:
        """`is_older_coming`: something older than this version of the rank is about to be sealed here."""
        self._shelves, self._out, self._is_older_coming = shelves, out, is_older_coming
        self._generation: Generation = NO_GENERATION
        self._running = False
        self.holders: tuple[Holder, ...] = ()
        self.lanes: dict[tuple[int, str], Lane] = {}

    def fence(self) -> None:
        self._running = False
        self.lanes.clear()

    def adopt(self, plan: Plan) -> None:
        self._generation, self.holders, self._running = plan.generation, plan.holders, False

    def go(self, plan: Plan) -> None:
        """Copies that died with a node are replicated anew, floor first, before anything newer."""
        self._running = True
        for order in plan.orders:
            for node, version in order.pushes:
                self._lane(order.rank, node).queue.append(version)
        self.send_next()

    # --- what is to be sent ------------------------------------------------------------------------------------------

    def sealed(self, rank: int, version: Version) -> None:
        for holder in self.holders:
            lane = self._lane(rank, holder.node)
            lane.line_up([*lane.queue, version])
        self.send_next()

    def replenish(self, rank: int, node: str, version: Version) -> None:
        """Before anything newer (rule 16, floor first)."""
        if any(holder.node == node for holder in self.holders):
            lane = self._lane(rank, node)
            lane.line_up({*lane.queue, version})
            self.send_next()

    def _lane(self, rank: int, node: str) -> Lane:
        holder = next(h for h in self.holders if h.node == node)
        return self.lanes.setdefault((rank, node), Lane(rank, holder))

    def retry(self) -> None:
        for lane in self.lanes.values():
            lane.resting = False
        self.send_next()

    # --- sending -----------------------------------------------------------------------------------------------------

    def send_next(self) -> None:
        if not self._running:
            return
        for lane in self.lanes.values():
            self._skip_dead(lane)
            if self._is_ready(lane):
                self._send(lane, self._shelves.own[lane.rank].find(lane.queue[0]))

    def _is_ready(self, lane: Lane) -> bool:
        """Checksums may end out of order; a floor that is captured anew must not be overtaken."""
        if lane.sending is not None or not lane.queue or lane.resting:
            return False
        return not self._is_older_coming(lane.rank, lane.queue[0])

    def _skip_dead(self, lane: Lane) -> None:
        """A version that the permit has passed would only be thrown away by its holder."""
        while lane.queue and self._shelves.is_dead(lane.queue[0]):
            lane.queue.popleft()

    def _send(self, lane: Lane, slot: Slot | None) -> None:
        """A floor that is still being fetched keeps its place at the head of the lane."""
        if slot is None or slot.copy is None:
            return
        slot.readers += 1
        lane.sending = (lane.queue[0], slot.ref)
        full = not slot.copy.peers
        self._out.append(
            PushCopy(slot=slot.ref, copy=slot.copy, holder=lane.holder, generation=self._generation, full=full)
        )

    def ended(self, rank: int, node: str, version: Version, failure: str | None) -> None:
        lane = self.lanes.get((rank, node))
        if lane is None or lane.sending is None or lane.sending[0] != version:
            return  # of a generation that is over
        self._shelves.own[rank].done_reading(lane.sending[1])
        if failure is not None and ALREADY_STORED in failure:
            failure = None
        lane.sending, lane.resting = None, failure is not None
        lane.failures = 0 if failure is None else lane.failures + (NO_ROOM not in failure)
        spoilt = failure is not None and NOT_AS_SEALED in failure
        given_up = lane.failures >= PUSH_ATTEMPTS and (spoilt or not self._is_floor(version))
        if (failure is None or given_up) and lane.queue and lane.queue[0] == version:
            lane.queue.popleft()
        if given_up:
            lane.failures = 0
            reason = f"holder {node} did not store it: {failure}"
            missed = Missed(generation=self._generation, rank=rank, number=version.number, reason=reason)
            self._out.append(ToCoordinator(message=missed))
        self.send_next()

    def _is_floor(self, version: Version) -> bool:
        """What a rollback would need is offered for ever: nothing newer may go to a holder that lacks it. Unless it is
        spoilt: then nobody can go back to it, and only something newer helps."""
        permit = self._shelves.permit
        return permit is not None and version == permit.watermark
