"""What other nodes offer to this one: whole copies, and what they add to its joint copies.

Threads of the transfer server open an offer and wait. The core, on the event loop, says whether there is a slot for it.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import threading
from collections.abc import Callable

from deadpool.protocol.causes import Refusal
from deadpool.protocol.effects import AcceptOffer
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.inputs import AgentInput, Offered, Received, ReceiveFailed
from deadpool.protocol.messages import Copy, SlotRef
from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import Extent, Geometry, Seal
from deadpool.snapshot.transfer import TransferRefused

_ANSWER_S = 30.0
Answer = AcceptOffer | TransferRefused


class Offers:
    def __init__(
        self,
        *,
        deliver: Callable[[AgentInput], None],
        slot: Callable[[SlotRef], memoryview],
        begin_joint: Callable[[AcceptOffer], None],
    ) -> None:
        """`deliver` takes inputs for the core in any thread; `slot` gives a slot of the arena. `begin_joint` is told on
        the event loop of a slot that is for a new joint copy."""
        self._deliver, self._slot, self._begin_joint = deliver, slot, begin_joint
        self._numbers = itertools.count(1)
        self._waiting: dict[int, concurrent.futures.Future[Answer]] = {}
        self._arriving: dict[tuple[int, Version], tuple[SlotRef, Copy]] = {}
        self._lock = threading.Lock()

    # --- on the event loop -------------------------------------------------------------------------------------------

    def answer(self, number: int, answer: Answer) -> None:
        """An offer that was given up meanwhile does not need its slot."""
        waiting = self._waiting.pop(number, None)
        if isinstance(answer, AcceptOffer) and answer.joint is not None and answer.fresh:
            self._begin_joint(answer)
        if waiting is not None:
            waiting.set_result(answer)
        elif isinstance(answer, AcceptOffer):
            reason, rank = "the offer was given up", answer.rank
            self._deliver(ReceiveFailed(slot=answer.slot, reason=reason, rank=rank))

    def refuse_all(self, reason: str) -> None:
        """The agent leaves."""
        for number in list(self._waiting):
            self.answer(number, TransferRefused(refusal=Refusal.UNANSWERED, reason=reason))

    # --- called by the transfer server's threads ---------------------------------------------------------------------

    def open(self, seal: Seal, generation: Generation, geometry: Geometry) -> memoryview | TransferRefused:
        room = geometry if seal.full else geometry.without_replica()
        copy = Copy(seal=seal, geometry=room)
        answer = self.offer(copy, generation)
        if isinstance(answer, TransferRefused):
            return answer
        with self._lock:
            self._arriving[seal.rank, seal.version] = (answer.slot, copy)
        return self._slot(answer.slot)

    def offer(self, copy: Copy, generation: Generation, group: RankGroup | None = None) -> Answer:
        """Waits for what the core says. With `group` the copy is to be added to the joint copy for that group."""
        number, waiting = next(self._numbers), concurrent.futures.Future[Answer]()
        self._waiting[number] = waiting
        self._deliver(Offered(offer=number, generation=generation, copy=copy, group=group))
        try:
            return waiting.result(_ANSWER_S)
        except TimeoutError:
            self._waiting.pop(number, None)
            return TransferRefused(refusal=Refusal.UNANSWERED, reason="the agent did not answer")

    def stored(self, seal: Seal) -> None:
        slot, copy = self._arrived(seal)
        count = _bytes_of(seal.extent, full=seal.full)
        self._deliver(Received(slot=slot, copy=copy, bytes_received=count))

    def dropped(self, seal: Seal, reason: str) -> None:
        slot, _ = self._arrived(seal)
        self._deliver(ReceiveFailed(slot=slot, reason=reason))

    def _arrived(self, seal: Seal) -> tuple[SlotRef, Copy]:
        with self._lock:
            return self._arriving.pop((seal.rank, seal.version))


def _bytes_of(extent: Extent, *, full: bool) -> int:
    return extent.record_bytes + extent.unique_bytes + (extent.replica_bytes if full else 0)
