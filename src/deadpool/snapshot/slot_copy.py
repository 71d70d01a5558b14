"""One capture's bulk on its way into one slot, over one or more lanes.

The copying thread advances it batch by batch. The main thread, when the optimizer is next, either commits it (issues at
once whatever is left) or gives it up; both return without waiting for a device. Each batch is claimed by one of the two
threads, so nothing is issued after a copy was closed. Whoever has seen its end knows that the slot has no writer.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from deadpool.snapshot.copy_stats import Figures
from deadpool.snapshot.lanes import Batch, Lane, Mark, Trip

_BATCHES_IN_FLIGHT = 2


@dataclass(slots=True, eq=False)
class Share:
    """What goes over one lane."""

    lane: Lane
    batches: list[Batch]
    trip: Trip
    next: int = 0  # to be claimed
    claimed: int = 0  # being issued right now
    done_bytes: int = 0
    end: Mark | None = None  # once nothing more will be issued

    @property
    def is_issued(self) -> bool:
        return self.next == len(self.batches) and self.claimed == 0


class SlotCopy:
    def __init__(self, shares: list[Share], source: object) -> None:
        """`source` is kept as long as this: batches are addresses, they do not hold memory."""
        self._shares, self._source = shares, source
        self._changed = threading.Condition()
        self._given_up = False
        self._began: float | None = None

    @property
    def nbytes(self) -> int:
        return sum(batch.nbytes for share in self._shares for batch in share.batches)

    # --- the copying thread ------------------------------------------------------------------------------------------

    def advance(self, cancelled: Callable[[], bool]) -> bool:
        """Until everything is in the slot, or was given up and nobody writes there any more. True: all is there."""
        self._began = time.monotonic()
        for share in self._shares:
            self._advance(share, cancelled)
        for share in self._shares:
            self._close(share).wait()
        return all(share.is_issued for share in self._shares)

    def _advance(self, share: Share, cancelled: Callable[[], bool]) -> None:
        in_flight: deque[tuple[Mark, int]] = deque()
        while True:
            if cancelled():
                self._give_up()
            batch = self._claim(share)
            if batch is None:
                return
            in_flight.append((self._issue(share, batch), batch.nbytes))
            if len(in_flight) >= _BATCHES_IN_FLIGHT:
                mark, nbytes = in_flight.popleft()
                mark.wait()
                share.done_bytes += nbytes

    # --- the main thread ---------------------------------------------------------------------------------------------

    def predict_stall_s(self) -> float:
        """How long the optimizer would wait for the rest, if it were enqueued now."""
        now = time.monotonic()
        return max((self._predict_stall_s(share, now) for share in self._shares), default=0.0)

    def _predict_stall_s(self, share: Share, now: float) -> float:
        if share.end is not None and share.end.done():
            return 0.0
        left_bytes = sum(batch.nbytes for batch in share.batches) - share.done_bytes
        return max(0.0, share.lane.pace.copy_s(left_bytes) - share.lane.ahead_s(self._began, now))

    def commit(self) -> None:
        """Everything is issued when this returns."""
        for share in self._shares:
            began = time.monotonic()
            while (batch := self._claim(share)) is not None:
                self._issue(share, batch)
            self._close(share)
            share.trip.waited(time.monotonic() - began)

    def give_up(self) -> None:
        """Nothing more is issued when this returns."""
        self._give_up()
        for share in self._shares:
            self._close(share)

    def hold(self) -> None:
        """What the script enqueues from now on waits for everything that was issued. After commit() or give_up()."""
        for share in self._shares:
            share.trip.hold()

    def await_end(self) -> None:
        """Blocks until nobody writes into the slot. After commit() or give_up()."""
        for share in self._shares:
            self._close(share).wait()

    def figures(self) -> Figures | None:
        """What it cost; None as long as that is not known."""
        found = [share.trip.figures() for share in self._shares]
        if any(each is None for each in found):
            return None
        known = [each for each in found if each is not None]
        return Figures(
            stall_s=max((each.stall_s for each in known), default=0.0),
            copied_bytes=sum(each.copied_bytes for each in known),
            copy_s=max((each.copy_s for each in known), default=0.0),
            traffic_s=max((each.traffic_s for each in known), default=0.0),
        )

    # --- both --------------------------------------------------------------------------------------------------------

    def _claim(self, share: Share) -> Batch | None:
        """One at a time: a trip is not for two threads at once."""
        with self._changed:
            self._changed.wait_for(lambda: share.claimed == 0)
            if self._given_up or share.next == len(share.batches):
                return None
            batch = share.batches[share.next]
            share.next += 1
            share.claimed += 1
            return batch

    def _issue(self, share: Share, batch: Batch) -> Mark:
        try:
            return share.trip.issue(batch)
        except BaseException:
            self._give_up()
            with self._changed:
                share.next -= 1  # it is not there: the copy is not whole
            raise
        finally:
            with self._changed:
                share.claimed -= 1
                self._changed.notify_all()

    def _give_up(self) -> None:
        with self._changed:
            self._given_up = True

    def _close(self, share: Share) -> Mark:
        with self._changed:
            self._changed.wait_for(lambda: share.claimed == 0)
            if share.end is None:
                share.end = share.trip.close()
            return share.end
