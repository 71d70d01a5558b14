"""The ranks' recordings, as a node keeps them."""

from __future__ import annotations

from deadpool.protocol.agent.trainers import EARLIER_START, Crew, State, Trainer
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Recording, Rehearse


class NodeRecordings:
    """Of the ranks that are seated or rehearsed there."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._of_rank: dict[int, Recording] = {}
        self._lent: set[int] = set()  # ranks of which the coordinator told since the last fence

    def fence(self) -> None:
        self._lent.clear()

    def borrow(self, recordings: Recording) -> None:
        """From the coordinator: they are of the start that the job goes on from."""
        self._lent.add(recordings.rank)
        self.keep(recordings)

    def forget_own(self) -> set[int]:
        """The script may have begun anew without this node: only what it was told since then counts. Of these ranks."""
        self._of_rank = {rank: recordings for rank, recordings in self._of_rank.items() if rank in self._lent}
        return set(self._of_rank)

    def keep(self, recordings: Recording) -> None:
        self._of_rank[recordings.rank] = recordings
        for trainer in list(self._crew.trainers.values()):
            if trainer.rank == recordings.rank and trainer.state in (State.REHEARSING, State.PARKED):
                if trainer.begun and trainer.told_of not in (None, recordings.start):
                    self._crew.replace(trainer, EARLIER_START, rank=trainer.rank)
                else:
                    self._tell(trainer, recordings)

    def of(self, rank: int) -> Recording | None:
        return self._of_rank.get(rank)

    def void(self, start: Generation) -> None:
        """The script begins at its first line: peers may tell each other something else this time."""
        for rank in list(self._of_rank):
            self.keep(Recording(rank=rank, start=start, complete=False, book=b""))

    def clear(self) -> None:
        self._of_rank.clear()

    def begin_rehearsal(self, trainer: Trainer, order: Rehearse) -> None:
        trainer.state, trainer.rank = State.REHEARSING, order.rank
        self.tell(trainer)
        self._crew.tell(trainer, order)

    def tell(self, trainer: Trainer) -> None:
        """Before the order to be that rank, on the same link."""
        if trainer.rank in self._of_rank:
            self._tell(trainer, self._of_rank[trainer.rank])

    def _tell(self, trainer: Trainer, recordings: Recording) -> None:
        """Whoever is to rehearse begins the script with these, unless they are void (trainer/main.py)."""
        self._crew.tell(trainer, recordings)
        if not recordings.is_void:
            trainer.begun, trainer.told_of = True, recordings.start
