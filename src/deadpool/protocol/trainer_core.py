"""What a trainer may claim about its state: which version it stands at, whether that is clean, what it may capture.

Three threads of a trainer ask here (the script's, the monitor's, the capture's), under one lock that the shell holds.
Rule 8 (sealing after the abort flag): the flag only grows and is set before any abort call; a version counts only if
its last optimizer step was seen complete *before* the flag was read. On a device the end of a step only means that its
work was enqueued: the version is *reached* then, and *observed* when the device has come that far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from deadpool.protocol.causes import Miss
from deadpool.protocol.identity import NO_GENERATION, Generation, Schedule, Version
from deadpool.protocol.messages import Captured, Live, Missed, SlotRef
from deadpool.protocol.permits import CaptureSchedule
from deadpool.protocol.seal import Geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """Copy the state of `version` into `slot` while the next forward and backward run."""

    generation: Generation
    version: Version
    slot: SlotRef
    carried: tuple[tuple[int, SlotRef], ...] = ()  # for the same tensors with the records of ranks that it carries


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotAwaited:
    """No slot is free for `version`. Its capture may begin later, while the state is still that of the version."""

    generation: Generation
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryStop:
    """No step is begun beyond version `number`."""

    number: int
    capture: bool  # every rank captures it, scheduled or not


class TrainerCore:
    def __init__(self) -> None:
        self.generation: Generation = NO_GENERATION
        self.aborted: Generation = NO_GENERATION
        self.rank = -1
        self.live: Version | None = None
        self.clean = False
        self.observed_version: Version | None = None  # the newest whose work was seen complete while the flag was down
        self._touched = False  # an optimizer step was enqueued since `live` was reached
        self.schedule = CaptureSchedule(Schedule())
        self._decided = -1  # the newest version for which it is decided whether it is captured
        self._stop: BoundaryStop | None = None
        self.resumed_at: Version | None = None  # captured again if no copy of it is left, whatever the schedule says
        self.geometry: Geometry | None = None  # as last declared to the agent
        self._slots: deque[SlotRef] = deque()
        self._carried: dict[
            int, deque[SlotRef]
        ] = {}  # slots for the ranks that this one carries (rule 30, carried ranks)
        self._segments: dict[int, Geometry] = {}

    @property
    def is_aborted(self) -> bool:
        return self.aborted > self.generation

    def take_seat(self, generation: Generation, rank: int, schedule: Schedule) -> None:
        self.generation, self.rank, self.schedule = generation, rank, CaptureSchedule(schedule)
        self.live, self.clean, self.geometry, self._decided = None, False, None, -1
        self.observed_version, self._stop = None, None
        self._slots.clear()
        self._carried = {}

    def begin(self) -> None:
        """The script has built everything: this is version 0."""
        self._reach(Version(self.generation, 0))

    def halt(self, generation: Generation) -> None:
        """Sets the abort before any abort call: a step that completes after this may be garbage."""
        self.aborted = max(self.aborted, generation)

    def grant(self, generation: Generation, slot: SlotRef, carried: int | None = None) -> None:
        if generation != self.generation or self.is_aborted or not self._fits(slot):
            return
        if carried is None:
            self._slots.append(slot)
        elif carried in self._carried:
            self._carried[carried].append(slot)

    def carry(self, ranks: Iterable[int]) -> None:
        """Takes the ranks that it carries under the plan that is being carried out. It is called after restored()."""
        self._carried = {rank: deque() for rank in ranks}

    def attach(self, segment: int, geometry: Geometry) -> None:
        self._segments[segment] = geometry

    def declare(self, geometry: Geometry) -> bool:
        """Whether the agent has to be told. No capture may be in flight: the agent takes back slots of another
        geometry, also those whose grant is still on its way here."""
        if geometry == self.geometry:
            return False
        self.geometry = geometry
        self._slots = deque(slot for slot in self._slots if self._fits(slot))
        for rank, slots in self._carried.items():
            self._carried[rank] = deque(slot for slot in slots if self._fits(slot))
        return True

    def _fits(self, slot: SlotRef) -> bool:
        return self.geometry is None or self._segments.get(slot.segment, self.geometry) == self.geometry

    @property
    def every(self) -> int:
        """The newest interval that the agent has sent."""
        return self.schedule.newest.every

    @property
    def has_slots(self) -> bool:
        return bool(self._slots) and all(self._carried.values())

    def optimizer_began(self) -> None:
        self.clean, self._touched = False, True

    def end_step(self) -> bool:
        """All of the step's work was enqueued. False: the abort flag was up by then, so the step does not count."""
        if self.is_aborted or self.live is None:
            return False
        self._reach(Version(self.generation, self.live.number + 1))
        return True

    def _reach(self, version: Version) -> None:
        """Nothing is claimed about it before observed()."""
        self.live, self.clean, self._touched = version, False, False

    def observed(self, version: Version) -> bool:
        """The work that makes `version` was seen complete; only now is the flag read. False: it may be garbage."""
        if self.is_aborted or version.generation != self.generation:
            return False
        if not self.has_observed(version):
            self.observed_version = version
            self.clean = version == self.live and not self._touched
        return True

    def has_observed(self, version: Version) -> bool:
        seen = self.observed_version
        return seen is not None and (seen.generation, seen.number) >= (version.generation, version.number)

    @property
    def is_far_ahead(self) -> bool:
        """The script has enqueued a whole step beyond the version it reached last, and that one was not seen yet."""
        return self.live is not None and not self.has_observed(self.live)

    def plan_capture(self) -> Capture | SlotAwaited | None:
        """What to do about the version just reached. All ranks capture the same ones, or report a miss."""
        assert self.live is not None
        self._decided = self.live.number
        wanted = self.schedule.captures(self.live.number) or self.live == self.resumed_at or self.captures_to_stand
        if self.is_aborted or not wanted:
            return None
        if not self.has_slots:
            return SlotAwaited(generation=self.generation, version=self.live)
        return self._take_slots(self.live)

    def capture_late(self, awaited: SlotAwaited) -> Capture | None:
        """The capture of a version that had no slot at its boundary, if a slot has been granted since and no optimizer
        step was enqueued: the state is still that of the version."""
        is_over = self.is_aborted or awaited.generation != self.generation or awaited.version != self.live
        if is_over or self._touched or not self.has_slots:
            return None
        return self._take_slots(awaited.version)

    def slot_never_came(self, awaited: SlotAwaited) -> Missed | None:
        """The state is about to change, so this rank has missed the version. None: its generation is over."""
        if self.is_aborted or awaited.generation != self.generation:
            return None
        return self.missed(awaited.version, Miss.NO_SLOT, "no free slot")

    def _take_slots(self, version: Version) -> Capture:
        carried = tuple((rank, slots.popleft()) for rank, slots in self._carried.items())
        return Capture(generation=self.generation, version=version, slot=self._slots.popleft(), carried=carried)

    def copied_carried(self, capture: Capture, record_bytes: Mapping[int, int]) -> list[Captured]:
        """The same tensors are in the slots of the ranks that this one carries, with their records."""
        own = self.copied(capture, 0)
        if own is None:
            return []
        return [
            replace(own, rank=rank, slot=slot, record_bytes=record_bytes[rank])
            for rank, slot in capture.carried
            if rank in record_bytes
        ]

    def copied(self, capture: Capture, record_bytes: int) -> Captured | None:
        """The copy is complete. The flag is read last: a capture that outlived its generation is no evidence, and
        neither is one of a version that was never observed."""
        if self.is_aborted or capture.generation != self.generation or not self.has_observed(capture.version):
            return None
        return Captured(
            generation=self.generation, version=capture.version, slot=capture.slot, record_bytes=record_bytes
        )

    def gave_up(self, capture: Capture, cause: Miss, reason: str, stall_s: float | None = None) -> Missed | None:
        """The trainer keeps the slot for its next capture."""
        if self.is_aborted or capture.generation != self.generation:
            return None
        if self._fits(capture.slot):
            self._slots.append(capture.slot)
        for rank, slot in capture.carried:
            self.grant(capture.generation, slot, rank)
        return self.missed(capture.version, cause, reason, stall_s)

    def missed(self, version: Version, cause: Miss, reason: str, stall_s: float | None = None) -> Missed:
        self._decided = max(self._decided, version.number)
        return self._missed(version.number, cause, reason, stall_s)

    def _missed(self, number: int, cause: Miss, reason: str, stall_s: float | None = None) -> Missed:
        return Missed(
            generation=self.generation, rank=self.rank, number=number, cause=cause, reason=reason, stall_s=stall_s
        )

    def reschedule(self, generation: Generation, schedule: Schedule) -> list[Missed]:
        """All ranks change at `schedule.start`. An order that comes later than that is too late to capture what the
        schedule asks for. The misses are reported: nothing else would show that these versions stay incomplete."""
        if generation != self.generation or self.is_aborted:
            return []
        overlooked = self.schedule.overlooked(schedule, self._decided)
        self.schedule.add(schedule, settled=self._decided + 1)
        why = "the new interval was heard of too late"
        return [self._missed(number, Miss.HEARD_TOO_LATE, why) for number in overlooked]

    def stand(self, generation: Generation, number: int) -> None:
        """An order that comes too late to capture `number` still stops the rank at the next version, so that it does
        not get further away before the coordinator asks again."""
        if generation == self.generation and not self.is_aborted:
            in_time = number > self._decided
            self._stop = BoundaryStop(number=number if in_time else self._decided + 1, capture=in_time)

    def proceed(self, generation: Generation) -> None:
        if generation == self.generation:
            self._stop = None

    @property
    def must_stand(self) -> bool:
        """The version that was reached last is the one to stop at."""
        return self._stop is not None and self.live is not None and self.live.number == self._stop.number

    @property
    def captures_to_stand(self) -> bool:
        return self.must_stand and self._stop is not None and self._stop.capture

    def rest(self) -> Live:
        """What a plan may count on, at the step boundary with captures joined."""
        self._slots.clear()
        self.carry(self._carried)
        return Live(rank=self.rank, version=self.live, clean=self.clean and self.live is not None)

    def restoring(self) -> None:
        """The state is dirty from here on, and an observation that comes late does not make it clean."""
        self.clean, self._touched = False, True

    def restored(self, generation: Generation, version: Version, schedule: Schedule) -> None:
        self.generation, self.schedule, self._decided = generation, CaptureSchedule(schedule), version.number
        self.live, self.clean, self.resumed_at, self._stop = version, True, version, None
        self.observed_version, self._touched = version, False
        self._slots.clear()
