"""The memory of a machine: what each slot contains, which writer it has, and which copies must not be lost."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Permit, Plan, SlotRef
from deadpool.protocol.seal import Geometry
from deadpool_lab.sim.coding import Content, ParityContent

if TYPE_CHECKING:
    from deadpool_lab.sim.checking.copy_checkers import CopyCheckers


class Arena:
    """The twin of the real arena. It reports to the checkers whatever is written or freed."""

    def __init__(self, node: str, checkers: CopyCheckers) -> None:
        self.node, self._checkers = node, checkers
        self.geometry: dict[int, Geometry] = {}
        self.counts: dict[int, int] = {}  # slots by segment
        self.contents: dict[SlotRef, Content | ParityContent] = {}
        self.writers: dict[SlotRef, object] = {}
        self.folding: dict[SlotRef, list[object]] = {}  # what writes to a parity: several at once, piece by piece
        self.sealed: dict[SlotRef, tuple[int, Version]] = {}
        self.parities: dict[SlotRef, tuple[int, Version]] = {}  # sealed ones, by the rank under which they are kept
        self.damaged: set[SlotRef] = set()
        self.permit: Permit | None = None

    @property
    def size_bytes(self) -> int:
        return sum(self.counts[segment] * geometry.slot_bytes for segment, geometry in self.geometry.items())

    def allocate(self, segment: int, geometry: Geometry, count: int) -> None:
        self.geometry[segment], self.counts[segment] = geometry, count

    def begin_write(self, slot: SlotRef, writer: object) -> None:
        assert slot.segment in self.geometry, f"{self.node} writes into {slot}, which is gone"
        assert slot.index < self.counts[slot.segment], f"{self.node} writes into {slot}, which was never there"
        self._checkers.check_one_writer(self.node, slot, self.writers.get(slot) or self.folding.get(slot))
        self._overwrite(slot)
        self.writers[slot] = writer

    def snapshot(self, slot: SlotRef) -> Content | None:
        """What the slot holds of one rank; None: nothing that is whole, or a parity."""
        content = self.contents.get(slot)
        return content if isinstance(content, Content) else None

    def end_write(self, slot: SlotRef, writer: object, content: Content | None) -> None:
        """A writer that ends without content leaves the slot torn."""
        if self.writers.get(slot) is not writer:
            return
        del self.writers[slot]
        if content is not None:
            self.contents[slot] = content

    def _overwrite(self, slot: SlotRef) -> None:
        self._check_given_up(slot)
        self.contents.pop(slot, None)
        self.damaged.discard(slot)

    def _check_given_up(self, slot: SlotRef) -> None:
        for sealed in (self.sealed, self.parities):
            if slot in sealed:
                rank, version = sealed.pop(slot)
                if slot not in self.damaged:
                    self._checkers.check_overwrite(self.node, rank, version, self.permit)

    # --- parities ----------------------------------------------------------------------------------------------------

    def begin_fold(self, slot: SlotRef, writer: object, parity: ParityContent, *, fresh: bool) -> None:
        self._checkers.check_one_writer(self.node, slot, self.writers.get(slot))
        if fresh:
            assert not self.folding.get(slot), f"{self.node} begins {slot} anew while others fold into it"
            self._overwrite(slot)
            self.contents[slot] = parity
        self.folding.setdefault(slot, []).append(writer)

    def end_fold(self, slot: SlotRef, writer: object, content: Content | None) -> None:
        if writer not in self.folding.get(slot, ()):
            return
        self.folding[slot].remove(writer)
        parity = self.contents.get(slot)
        if content is not None and isinstance(parity, ParityContent):
            self.contents[slot] = parity.with_part(content)

    def seal(self, slot: SlotRef, rank: int, version: Version) -> None:
        content = self.contents.get(slot)
        assert content is not None and (content.rank, content.version) == (rank, version), (slot, content, version)
        assert slot not in self.writers, f"{self.node} seals {slot} while it is written"
        assert not self.folding.get(slot), f"{self.node} seals {slot} while others fold into it"
        sealed = self.parities if isinstance(content, ParityContent) else self.sealed
        sealed[slot] = (rank, version)

    def damage(self, slot: SlotRef) -> None:
        self.damaged.add(slot)
        self.contents[slot] = self.contents[slot].damaged()

    def obey(self, order: Permit | Plan, reported: Collection[tuple[int, Version]]) -> None:
        """Follows an order of the coordinator. Copies that a plan dropped need not be kept. Nor need those that the
        permit had passed and the node had not `reported` at the fence, since a plan may go back to such a version
        from live memory."""
        self._checkers.on_permit_obeyed(order if isinstance(order, Permit) else order.permit)
        if isinstance(order, Permit):
            self.permit = order
            return
        for sealed in (self.sealed, self.parities):
            for slot, copy in list(sealed.items()):
                if self._is_passed(copy[1]) and copy not in reported:
                    del sealed[slot]
        self.permit = order.permit
        resume = order.resume
        for sealed in (self.sealed, self.parities):
            for slot, (_, version) in list(sealed.items()):
                other = resume is not None and version.number == resume.number and version != resume
                if resume is None or version.number > resume.number or other:
                    del sealed[slot]

    def _is_passed(self, version: Version) -> bool:
        permit = self.permit
        return permit is not None and version != permit.watermark and version.number < permit.keep_from

    def release(self, segment: int) -> None:
        for slot in [slot for slot in (*self.sealed, *self.parities) if slot.segment == segment]:
            self._check_given_up(slot)
        assert not any(slot.segment == segment for slot in self.writers), f"{self.node} frees a segment that is written"
        self.contents = {slot: content for slot, content in self.contents.items() if slot.segment != segment}
        self.damaged = {slot for slot in self.damaged if slot.segment != segment}
        del self.geometry[segment], self.counts[segment]
