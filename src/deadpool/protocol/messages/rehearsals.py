"""Rehearsals and audits.

`Recording`, `Rehearse` and `Parked`: how a spare gets ready for a rank: what live ranks record for it, the
rehearsal, and the parked process.

A recovery is played on purpose: do all ranks compute again, bit for bit, what they have computed before?
"""

from __future__ import annotations

from typing import Literal

from deadpool.protocol.identity import Generation, Message, Value
from deadpool.protocol.seal import Geometry


class Recording(Message, frozen=True, kw_only=True):
    """The results that collectives gave a rank before its loop and, if `complete`, in its first step.

    A spare that rehearses the rank alone is given the same results. They are void for a script that was started again
    after `start`. A fence does not hold them back, because they are no state of the job.
    """

    rank: int
    start: Generation  # in which the script began at its first line
    complete: bool
    book: bytes  # read by trainers only; empty: nothing yet
    loop_began: float = 0.0  # by the clock of the wall, in the first process of the rank; 0: in an earlier job
    torch: str = ""  # of the rank, by name: whoever rehearses it must have the same; empty: of an earlier job

    @property
    def is_void(self) -> bool:
        """The rank has not come to its loop in this start of the script. A book in which nothing stands has bytes."""
        return not self.book and not self.complete


class Rehearse(Message, frozen=True, kw_only=True):
    """Run the script under fake groups as `rank`. At a fence it is also the hint which rank a spare is about to
    take."""

    generation: Generation
    trainer: str
    rank: int


class Parked(Message, frozen=True, kw_only=True):
    """The spare's model is built and warm. With `geometry` the agent can allocate slots before they are needed."""

    rank: int
    geometry: Geometry
    device_bytes: int = 0  # of a device's memory, that this process has taken


PartKind = Literal[
    "position", "object", "modes", "floats", "random", "buffer", "logged", "gradient", "parameter", "optimizer"
]
"""The kinds of parts, in the order in which causes come before their effects."""


class Part(Value, frozen=True, kw_only=True):
    """A part of a rank's state and its digest."""

    kind: PartKind
    name: str  # as the user would write it
    digest: int
    decides: bool = True
    """False: it may differ in a script that is exact, such as a time, or a gradient that no optimizer takes. If it
    differs, people are told, and nothing follows from it."""


class Audit(Message, frozen=True, kw_only=True):
    """Every rank tells its digests at version `number`, and captures nothing from there on in this generation, so that
    the step before has to be computed again. With `ends` all have told them: the trainer of `rank` ends behind its next
    optimizer step, and the others wait at the end of theirs for the fence, so that they redo a whole step.

    With `inside` the version is captured like any other, and ranks stop in the step that follows it, before they update
    anything; `ends` comes when the version is committed, and is followed at once.

    In later generations every rank tells its digests once more when it stands at `number`."""

    generation: Generation
    number: int
    rank: int
    inside: bool = False
    ends: bool = False


class Digested(Message, frozen=True, kw_only=True):
    """The digests of a rank at version `number`. Without parts the rank was past it when the order came, or no other
    process could take its place: it is `irreplaceable`."""

    generation: Generation
    rank: int
    number: int
    parts: tuple[Part, ...]
    irreplaceable: bool = False  # its script has made objects that a newcomer cannot have, and was told so
    moved: bool = True
    """False: nothing that shows what steps compute has changed since the version that the rank went back to."""
    named: tuple[str, ...] = ()  # the rules that guards of this rank have named so far


class AuditOver(Message, frozen=True, kw_only=True):
    """Ranks capture again, and tell no digests any more."""

    generation: Generation
