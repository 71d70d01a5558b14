"""Copies one capture's bulk into one slot, over one or more lanes.

The copying thread advances the copy batch by batch. Before the optimizer the main thread commits the copy, which issues
all remaining batches at once, or sets aside what cannot be copied in time, or gives the copy up; none of them waits for
a device. Each batch is claimed by one of the two threads, so that nothing is issued after a copy was closed. After its
end nothing writes into the slot any more.

What is set aside is cloned on the device, which is some forty times faster than to copy it to the host, and the clones
are copied while the next steps run. The copy is exact: everything is read, or cloned, before the optimizer writes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from deadpool.snapshot.copying.copy_stats import CaptureCost
from deadpool.snapshot.copying.lanes import CopyLane, LaneCopy, Mark, MoveBatch

_BATCHES_IN_FLIGHT = 2


@dataclass(slots=True, eq=False)
class LaneShare:
    """The part of a copy that goes over one lane."""

    lane: CopyLane
    batches: list[MoveBatch]
    copy: LaneCopy
    next: int = 0  # the batch to be claimed next
    claimed: int = 0  # how many are being issued right now
    done_bytes: int = 0
    end: Mark | None = None  # set when nothing more will be issued

    @property
    def is_issued(self) -> bool:
        return self.next == len(self.batches) and self.claimed == 0

    @property
    def left_bytes(self) -> int:
        """What is not known to be in the slot."""
        return sum(batch.nbytes for batch in self.batches) - self.done_bytes


@dataclass(frozen=True, slots=True)
class Cut:
    """Batches before `first` are copied, those from there on are set aside. The optimizer then waits for `stall_s`."""

    first: int
    stall_s: float


class SlotCopy:
    def __init__(self, shares: list[LaneShare], source: object) -> None:
        """Keeps a reference to `source`: batches are only addresses and do not keep memory alive."""
        self._shares, self._source = shares, source
        self._changed = threading.Condition()
        self._given_up = False
        self._began: float | None = None
        self._aside_bytes = 0

    @property
    def nbytes(self) -> int:
        return sum(batch.nbytes for share in self._shares for batch in share.batches)

    # --- the copying thread ------------------------------------------------------------------------------------------

    def began_at(self, reached_at: float) -> None:
        """The device had reached the boundary then, long before advance() is called."""
        self._began = reached_at

    def advance(self, cancelled: Callable[[], bool]) -> bool:
        """Copies until everything is in the slot, or the copy was given up and nothing writes into the slot any more.
        Returns whether everything is in the slot. `cancelled` is asked before each batch."""
        self._began = time.monotonic() if self._began is None else self._began
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
        return max(0.0, share.lane.stats.copy_s(share.left_bytes) - share.lane.ahead_s(self._began, now))

    def predict_left_s(self) -> float:
        """Predicts how long this copy still keeps a later one waiting."""
        lefts = (each for each in self._shares if each.end is None or not each.end.done())
        return max((share.lane.stats.copy_s(share.left_bytes) for share in lefts), default=0.0)

    def predict_aside_s(self) -> float | None:
        """Predicts how long the optimizer would wait if this copy were set aside; None: there is nothing, or no room,
        to set aside."""
        now = time.monotonic()
        cuts = [self._cut(share, now) for share in self._shares]
        if all(cut.first == len(share.batches) for cut, share in zip(cuts, self._shares, strict=True)):
            return None
        return max(cut.stall_s for cut in cuts)

    def _cut(self, share: LaneShare, now: float) -> Cut:
        """Copies as much as can be copied in time, or more if there is no room for the rest.

        The first batch is never set aside: it gathers small tensors into buffers that later ones copy.
        """
        sizes, stats, count = [batch.nbytes for batch in share.batches], share.lane.stats, len(share.batches)
        ahead_s, room = share.lane.ahead_s(self._began, now), share.lane.aside_room()
        first = min(max(share.next, 1), count)
        copied, rest = sum(sizes[:first]) - share.done_bytes, sum(sizes[first:])
        while first < count and (rest > room or stats.copy_s(copied + sizes[first]) <= ahead_s):
            copied, rest = copied + sizes[first], rest - sizes[first]
            first += 1
        return Cut(first, max(0.0, stats.copy_s(copied) - ahead_s) + (share.lane.clone_s(rest) if rest else 0.0))

    def commit(self) -> None:
        """Issues all remaining batches."""
        for share in self._shares:
            began = time.monotonic()
            while (batch := self._claim(share)) is not None:
                self._issue(share, batch)
            self._close(share)
            share.copy.waited(time.monotonic() - began)

    def set_aside(self) -> int:
        """Issues what can be copied in time, and sets the rest aside for advance(). Returns how many bytes that are."""
        now, before = time.monotonic(), self._aside_bytes
        for share in self._shares:
            began = time.monotonic()
            with self._owned(share):
                self._set_aside(share, self._cut(share, now).first)
            if share.is_issued:
                self._close(share)
            share.copy.waited(time.monotonic() - began)
        return self._aside_bytes - before

    def _set_aside(self, share: LaneShare, first: int) -> None:
        while share.next < first and not self._given_up:
            share.copy.issue(share.batches[share.next])
            share.next += 1
        rest = share.batches[share.next :]
        if rest and not self._given_up:
            share.batches = [*share.batches[: share.next], *share.copy.set_aside(rest)]
            self._aside_bytes += sum(batch.nbytes for batch in rest)

    def give_up(self) -> None:
        """Gives the copy up: nothing more is issued when this returns."""
        self._give_up()
        for share in self._shares:
            self._close(share)

    def hold(self) -> None:
        """Makes what the script enqueues from now on wait for everything that was issued, or set aside. Call it after
        commit(), set_aside() or give_up()."""
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
        )

    # --- both --------------------------------------------------------------------------------------------------------

    def _claim(self, share: LaneShare) -> MoveBatch | None:
        """Claims the next batch when no other is being issued: two threads must not issue to a lane at once."""
        with self._changed:
            self._changed.wait_for(lambda: share.claimed == 0)
            if self._given_up or share.next == len(share.batches):
                return None
            batch = share.batches[share.next]
            share.next += 1
            share.claimed += 1
            return batch

    def _issue(self, share: LaneShare, batch: MoveBatch) -> Mark:
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

    @contextlib.contextmanager
    def _owned(self, share: LaneShare) -> Iterator[None]:
        """Keeps the other thread from issuing to this lane. An error leaves the copy torn."""
        with self._changed:
            self._changed.wait_for(lambda: share.claimed == 0)
            share.claimed += 1
        try:
            yield
        except BaseException:
            self._give_up()
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
