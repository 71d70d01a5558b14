"""Spare trainers rehearse ranks: who is told to be which, and with which prompts."""

from __future__ import annotations

from deadpool.protocol.coordinator.members import Casting, Member, cast, castings
from deadpool.protocol.coordinator.outbox import Outbox
from deadpool.protocol.coordinator.recorded_collectives import PromptShelf
from deadpool.protocol.messages import Rehearse
from deadpool.protocol.topology import Layout

_AT_WORK = ("starting", "rehearsing", "parked")


class Rehearsals:
    def __init__(self, layout: Layout, prompts: PromptShelf, out: Outbox) -> None:
        self._layout, self._prompts, self._out = layout, prompts, out

    def assign(self, members: list[Member]) -> None:
        """While the job runs: everyone who is free rehearses something, and has what there is to be told of it."""
        for member in members:
            self.prompt(member.node, [t.rank for t in member.trainers if t.rank is not None and t.state in _AT_WORK])
        for member, casting in castings(members, self._layout):
            self._order(member, casting)

    def inherit(self, members: list[Member]) -> None:
        """Somebody else has told them until now who they are."""
        for member in members:
            for trainer in member.trainers:
                if trainer.rank is not None and trainer.state == "seated":
                    self._prompts.is_read_by(member.node, trainer.rank)
        self.assign(members)

    def hint(self, member: Member, position: int) -> None:
        """The node will be seated there: it builds for these ranks while survivors are still unwinding."""
        self._order(member, cast(member, list(self._layout.ranks_at(position))))

    def prompt(self, node: str, ranks: list[int]) -> None:
        """Before the order that needs them, on the same link."""
        for prompts in self._prompts.lend(node, ranks):
            self._out.send(node, prompts)

    def _order(self, member: Member, casting: Casting) -> None:
        self.prompt(member.node, [rank for _, rank in casting])
        for trainer, rank in casting:
            self._out.send(member.node, Rehearse(generation=self._out.generation, trainer=trainer, rank=rank))
