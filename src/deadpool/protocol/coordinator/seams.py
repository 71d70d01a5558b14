"""Where the coordinator calls optional features. Three seams are apart, because plans are made of them: `Vacancies` in
`recovery/global_plan.py`, what positions become that no node can take; `Redundancy` in `protection/redundancy.py`, how
groups protect ranks; and `Fallback` in `recovery/fallback.py`, what a job goes back to that has lost every copy of a
rank.

A feature derives its part from `CoordinatorPart` and overrides what it has a say in; the rest does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from deadpool.protocol.coordinator.audit import RecoveryAudit
from deadpool.protocol.coordinator.job import JobState
from deadpool.protocol.coordinator.leaving.drain import Drains
from deadpool.protocol.coordinator.leaving.drain_requests import DrainRequests
from deadpool.protocol.coordinator.leaving.ending import Ending
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.membership.run_monitor import RunMonitor
from deadpool.protocol.coordinator.protection.scheme_changes import SchemeChanges
from deadpool.protocol.coordinator.recovery.fallback import Fallback
from deadpool.protocol.coordinator.recovery.fault_history import FaultHistory
from deadpool.protocol.coordinator.recovery.faults import Faults
from deadpool.protocol.coordinator.recovery.rehearsals import Rehearsals
from deadpool.protocol.effects import earliest
from deadpool.protocol.identity import FeatureMessage, Version
from deadpool.protocol.inputs import FeatureInput
from deadpool.protocol.messages import CopyLost


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorCore:
    """The parts of the coordinator that a feature may use."""

    job: JobState
    monitor: RunMonitor
    history: FaultHistory
    rehearsals: Rehearsals
    drains: Drains
    requests: DrainRequests
    schemes: SchemeChanges
    fallback: Fallback
    faults: Faults
    ending: Ending
    audit: RecoveryAudit


class CoordinatorPart:
    def on_message(self, member: Member, message: FeatureMessage, now: float) -> None:
        """The message may be another feature's."""

    def on_input(self, input: FeatureInput) -> None:
        """The input may be another feature's. It may also come while this process does not lead."""

    def on_request(self, what: str, arguments: Mapping[str, object]) -> FeatureInput | str | None:
        """A person asks for something by this word. Returns the input that follows, or why nothing does; None: another
        feature may know the word."""
        return None

    def follow(self, before: CoordinatorPart) -> None:
        """This process begins another term. `before`, perhaps another feature's, is what it had in the term before."""

    def on_joint_copy_lost(self, member: Member, lost: CopyLost) -> None:
        """What a node keeps for a group of ranks is damaged, or it was dropped."""

    def advance(self, now: float) -> None:
        """The coordinator calls this after every input, once it is known who leaves, and before a drain goes on."""

    def conclude(self, now: float) -> None:
        """The coordinator calls this after every input, when all else has followed from it, and before the job ends."""

    def deadline(self) -> float | None:
        """When it wants to be looked at again, at the latest."""
        return None

    def look(self, now: float) -> None:
        """The coordinator calls this with every heartbeat."""

    def discount_stall(self, seconds: float) -> None:
        """Rule 20, timeouts: the coordinator itself did not run for so long."""

    # --- which versions count -----------------------------------------------------------------------------------------

    def withholds(self, version: Version) -> bool:
        """All copies of the version are there. Returns whether it is not to be committed all the same; nothing is
        committed then until the next fence, and the part says in `advance` what follows."""
        return False

    def on_frozen(self) -> None:
        """All nodes are frozen, and a plan is about to be made from what they have."""

    # --- how snapshots are protected ----------------------------------------------------------------------------------

    @property
    def chooses_scheme(self) -> bool:
        """The job may choose how its snapshots are protected."""
        return False

    def choose_scheme_again(self, now: float) -> None:
        """A person leaves it to the job. Only asked of who chooses it."""

    def on_scheme_asked(self, is_placed_anew: bool, now: float) -> None:
        """A person has asked for a scheme, and it counts from the next plan on. `is_placed_anew`: one is coming."""

    # --- for status ---------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, object]:
        return {}

    def node_facts(self, member: Member) -> dict[str, object]:
        return {}


Part = TypeVar("Part", bound=CoordinatorPart)


class CoordinatorParts:
    """The parts of all features, as one."""

    def __init__(self, parts: Sequence[CoordinatorPart]) -> None:
        self._parts = tuple(parts)

    def __iter__(self) -> Iterator[CoordinatorPart]:
        return iter(self._parts)

    def find(self, kind: type[Part]) -> Part | None:
        """For checkers, which know which feature they check."""
        return next((part for part in self._parts if isinstance(part, kind)), None)

    def withholds(self, version: Version) -> bool:
        return any(part.withholds(version) for part in self._parts)

    def on_frozen(self) -> None:
        for part in self._parts:
            part.on_frozen()

    def follow(self, before: CoordinatorParts) -> None:
        for part in self._parts:
            for each in before:
                part.follow(each)

    def request(self, what: str, arguments: Mapping[str, object]) -> FeatureInput | str | None:
        found = (part.on_request(what, arguments) for part in self._parts)
        return next((each for each in found if each is not None), None)

    def deadline(self) -> float | None:
        found: float | None = None
        for part in self._parts:
            found = earliest(found, part.deadline())
        return found

    @property
    def chooses_scheme(self) -> bool:
        return any(part.chooses_scheme for part in self._parts)

    def facts(self) -> dict[str, object]:
        return {name: fact for part in self._parts for name, fact in part.facts().items()}

    def node_facts(self, member: Member) -> dict[str, object]:
        return {name: fact for part in self._parts for name, fact in part.node_facts(member).items()}
