"""Spare trainers rehearse ranks: who is told to be which, and with which recordings."""

from __future__ import annotations

from deadpool.protocol.coordinator.members import Casting, Member, cast, castings
from deadpool.protocol.coordinator.outbox import Outbox
from deadpool.protocol.coordinator.recorded_collectives import RecordingCache
from deadpool.protocol.messages import Rehearse
from deadpool.protocol.topology import Layout

_AT_WORK = ("starting", "rehearsing", "parked")


class Rehearsals:
    def __init__(self, layout: Layout, recordings: RecordingCache, out: Outbox) -> None:
        self._layout, self._recordings, self._out = layout, recordings, out

    def assign(self, members: list[Member]) -> None:
        """While the job runs: everyone who is free rehearses something, and has what there is to be told of it."""
        for member in members:
            self.recording(member.node, [t.rank for t in member.trainers if t.rank is not None and t.state in _AT_WORK])
        for member, casting in castings(members, self._layout):
            self._order(member, casting)

    def take_over(self, members: list[Member]) -> None:
        """Somebody else has told them until now who they are."""
        for member in members:
            for trainer in member.trainers:
                if trainer.rank is not None and trainer.state == "seated":
                    self._recordings.is_read_by(member.node, trainer.rank)
        self.assign(members)

    def hint(self, member: Member, position: int) -> None:
        """The node will be seated there: it builds for these ranks while survivors are still unwinding."""
        self._order(member, cast(member, list(self._layout.ranks_at(position))))

    def recording(self, node: str, ranks: list[int]) -> None:
        """Before the order that needs them, on the same link."""
        for recordings in self._recordings.lend(node, ranks):
            self._out.send(node, recordings)

    def _order(self, member: Member, casting: Casting) -> None:
        self.recording(member.node, [rank for _, rank in casting])
        for trainer, rank in casting:
            self._out.send(member.node, Rehearse(generation=self._out.generation, trainer=trainer, rank=rank))
