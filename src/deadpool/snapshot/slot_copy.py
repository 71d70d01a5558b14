"""Copies one capture's bulk into one slot, over one or more lanes.

The copying thread advances the copy batch by batch. Before the optimizer the main thread either commits the copy, which
issues all remaining batches at once, or gives it up; neither waits for a device. Each batch is claimed by one of the
two threads, so that nothing is issued after a copy was closed. After its end nothing writes into the slot any more.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from deadpool.snapshot.copy_stats import CaptureCost
from deadpool.snapshot.lanes import CopyBatch, CopyLane, LaneCopy, Mark

_BATCHES_IN_FLIGHT = 2


@dataclass(slots=True, eq=False)
class LaneShare:
    """The part of a copy that goes over one lane."""

    lane: CopyLane
    batches: list[CopyBatch]
    copy: LaneCopy
    next: int = 0  # the batch to be claimed next
    claimed: int = 0  # how many are being issued right now
    done_bytes: int = 0
    end: Mark | None = None  # set when nothing more will be issued

    @property
    def is_issued(self) -> bool:
        return self.next == len(self.batches) and self.claimed == 0


class SlotCopy:
    def __init__(self, shares: list[LaneShare], source: object) -> None:
        """Keeps a reference to `source`: batches are only addresses and do not keep memory alive."""
        self._shares, self._source = shares, source
        self._changed = threading.Condition()
        self._given_up = False
        self._began: float | None = None

    @property
    def nbytes(self) -> int:
        return sum(batch.nbytes for share in self._shares for batch in share.batches)

    # --- the copying thread ------------------------------------------------------------------------------------------

    def advance(self, cancelled: Callable[[], bool]) -> bool:
        """Copies until everything is in the slot, or the copy was given up and nothing writes into the slot any more.
        Returns whether everything is in the slot."""
        self._began = time.monotonic()
        for share in self._shares:
            self._advance(share, cancelled)
        for share in self._shares:
            self._close(share).wait()
        return all(share.is_issued for share in self._shares)

    def _advance(self, share: LaneShare, cancelled: Callable[[], bool]) -> None:
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
        """Predicts how long the optimizer would wait for the remaining batches if they were enqueued now."""
        now = time.monotonic()
        return max((self._predict_stall_s(share, now) for share in self._shares), default=0.0)

    def _predict_stall_s(self, share: LaneShare, now: float) -> float:
        if share.end is not None and share.end.done():
            return 0.0
        left_bytes = sum(batch.nbytes for batch in share.batches) - share.done_bytes
        return max(0.0, share.lane.stats.copy_s(left_bytes) - share.lane.ahead_s(self._began, now))

    def commit(self) -> None:
        """Issues all remaining batches."""
        for share in self._shares:
            began = time.monotonic()
            while (batch := self._claim(share)) is not None:
                self._issue(share, batch)
            self._close(share)
            share.copy.waited(time.monotonic() - began)

    def give_up(self) -> None:
        """Gives the copy up: nothing more is issued when this returns."""
        self._give_up()
        for share in self._shares:
            self._close(share)

    def hold(self) -> None:
        """Makes what the script enqueues from now on wait for everything that was issued. Call it after commit() or
        give_up()."""
        for share in self._shares:
            share.copy.hold()

    def await_end(self) -> None:
        """Waits until nothing writes into the slot. Call it after commit() or give_up()."""
        for share in self._shares:
            self._close(share).wait()

    def cost(self) -> CaptureCost | None:
        """Returns what the copy cost, or None as long as that is not known."""
        found = [share.copy.cost() for share in self._shares]
        if any(each is None for each in found):
            return None
        known = [each for each in found if each is not None]
        return CaptureCost(
            stall_s=max((each.stall_s for each in known), default=0.0),
            copied_bytes=sum(each.copied_bytes for each in known),
            copy_s=max((each.copy_s for each in known), default=0.0),
            traffic_s=max((each.traffic_s for each in known), default=0.0),
        )

    # --- both --------------------------------------------------------------------------------------------------------

    def _claim(self, share: LaneShare) -> CopyBatch | None:
        """Claims the next batch when no other is being issued: two threads must not issue to a lane at once."""
        with self._changed:
            self._changed.wait_for(lambda: share.claimed == 0)
            if self._given_up or share.next == len(share.batches):
                return None
            batch = share.batches[share.next]
            share.next += 1
            share.claimed += 1
            return batch

    def _issue(self, share: LaneShare, batch: CopyBatch) -> Mark:
        try:
            return share.copy.issue(batch)
        except BaseException:
            self._give_up()
            with self._changed:
                share.next -= 1  # the batch was not issued, so the copy is not complete
            raise
        finally:
            with self._changed:
                share.claimed -= 1
                self._changed.notify_all()

    def _give_up(self) -> None:
        with self._changed:
            self._given_up = True

    def _close(self, share: LaneShare) -> Mark:
        with self._changed:
            self._changed.wait_for(lambda: share.claimed == 0)
            if share.end is None:
                share.end = share.copy.close()
            return share.end
