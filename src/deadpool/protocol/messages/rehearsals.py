"""How a spare gets ready for a rank: what live ranks record for it, the rehearsal, and the parked process."""

from __future__ import annotations

from deadpool.protocol.identity import Generation
from deadpool.protocol.seal import Geometry
from deadpool.protocol.structs import Message


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
