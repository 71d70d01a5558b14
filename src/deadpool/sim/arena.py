"""The memory of a machine: what each slot contains, which writer it has, and which copies must not be lost."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Permit, Plan, SlotRef
from deadpool.protocol.seal import Digest, Geometry
from deadpool.sim.history import State

if TYPE_CHECKING:
    from deadpool.sim.copy_checkers import CopyCheckers


@dataclass(frozen=True, slots=True)
class Content:
    """A whole snapshot. `replica` is None where that region was not sent to this node."""

    rank: int
    version: Version
    unique: int
    replica: int | None
    course: int  # the data that the rank has seen, which its record holds

    def digest(self) -> Digest:
        return Digest(record=self.course, unique=self.unique, replica=self.replica or 0)


def content_of(rank: int, version: Version, state: State) -> Content:
    return Content(rank, version, state.unique, state.replica, state.course)


class Arena:
    """The twin of the real arena. It reports to the checkers whatever is written or freed."""

    def __init__(self, node: str, checkers: CopyCheckers) -> None:
        self.node, self._checkers = node, checkers
        self.geometry: dict[int, Geometry] = {}
        self.contents: dict[SlotRef, Content] = {}
        self.writers: dict[SlotRef, object] = {}
        self.sealed: dict[SlotRef, tuple[int, Version]] = {}
        self.corrupted: set[SlotRef] = set()
        self.permit: Permit | None = None

    def begin_write(self, slot: SlotRef, writer: object) -> None:
        assert slot.segment in self.geometry, f"{self.node} writes into {slot}, which is gone"
        self._checkers.check_one_writer(self.node, slot, self.writers.get(slot))
        if slot in self.sealed:
            rank, version = self.sealed.pop(slot)
            if slot not in self.corrupted:
                self._checkers.check_overwrite(self.node, rank, version, self.permit)
        self.writers[slot] = writer
        self.contents.pop(slot, None)
        self.corrupted.discard(slot)

    def end_write(self, slot: SlotRef, writer: object, content: Content | None) -> None:
        """A writer that ends without content leaves the slot torn."""
        if self.writers.get(slot) is not writer:
            return
        del self.writers[slot]
        if content is not None:
            self.contents[slot] = content

    def seal(self, slot: SlotRef, rank: int, version: Version) -> None:
        content = self.contents.get(slot)
        assert content is not None and (content.rank, content.version) == (rank, version), (slot, content, version)
        assert slot not in self.writers, f"{self.node} seals {slot} while it is written"
        self.sealed[slot] = (rank, version)

    def corrupt(self, slot: SlotRef) -> None:
        self.corrupted.add(slot)
        self.contents[slot] = replace(self.contents[slot], unique=self.contents[slot].unique ^ 1)

    def obey(self, order: Permit | Plan, reported: Collection[tuple[int, Version]]) -> None:
        """Follows an order of the coordinator. Copies that a plan dropped need not be kept. Nor need those that the
        permit had passed and the node had not `reported` at the fence, since a plan may go back to such a version
        from live memory."""
        self._checkers.on_permit_obeyed(order if isinstance(order, Permit) else order.permit)
        if isinstance(order, Permit):
            self.permit = order
            return
        for slot, copy in list(self.sealed.items()):
            if self._is_passed(copy[1]) and copy not in reported:
                del self.sealed[slot]
        self.permit = order.permit
        resume = order.resume
        for slot, (_, version) in list(self.sealed.items()):
            other = resume is not None and version.number == resume.number and version != resume
            if resume is None or version.number > resume.number or other:
                del self.sealed[slot]

    def _is_passed(self, version: Version) -> bool:
        permit = self.permit
        return permit is not None and version != permit.watermark and version.number < permit.keep_from

    def release(self, segment: int) -> None:
        for slot in [slot for slot in self.sealed if slot.segment == segment]:
            rank, version = self.sealed.pop(slot)
            if slot not in self.corrupted:
                self._checkers.check_overwrite(self.node, rank, version, self.permit)
        assert not any(slot.segment == segment for slot in self.writers), f"{self.node} frees a segment that is written"
        self.contents = {slot: content for slot, content in self.contents.items() if slot.segment != segment}
        self.corrupted = {slot for slot in self.corrupted if slot.segment != segment}
        del self.geometry[segment]
