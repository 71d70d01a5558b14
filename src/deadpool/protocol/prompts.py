"""The ranks' prompts, as the coordinator keeps and lends them and as a node keeps them. Part of both cores.

Nobody is told what he does not need: a node gets the prompts of a rank when it first rehearses or seats it, and again
whenever they are renewed.
"""

from __future__ import annotations

from collections.abc import Sequence

from deadpool.protocol.crew import Crew, State, Trainer
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Prompts

NOTHING: frozenset[int] = frozenset()


class PromptShelf:
    """The coordinator's: which there are, and which nodes have been lent them."""

    def __init__(self) -> None:
        self._of_rank: dict[int, Prompts] = {}
        self._readers: dict[int, set[str]] = {}  # by rank: nodes that have them, or will when they come
        self._read_by: dict[str, set[int]] = {}  # the same by node

    def bring(self, node: str, prompts: Prompts) -> list[str]:
        """From the rank's own node. Returns who else has to be told."""
        self._of_rank[prompts.rank] = prompts
        others = sorted(self._readers.get(prompts.rank, set()) - {node})
        self.is_read_by(node, prompts.rank)
        return others

    def lend(self, node: str, ranks: Sequence[int]) -> list[Prompts]:
        """What the node has to be told now, for it to have all there is. It will be told of news."""
        has = self._read_by.get(node, NOTHING)
        if has.issuperset(ranks):
            return []  # as of most nodes in most plans
        unread = [rank for rank in ranks if rank not in has]
        for rank in unread:
            self.is_read_by(node, rank)
        return [self._of_rank[rank] for rank in unread if rank in self._of_rank]

    def is_read_by(self, node: str, rank: int) -> None:
        """The node rehearses or seats it, and was told what there was by somebody before us."""
        self._readers.setdefault(rank, set()).add(node)
        self._read_by.setdefault(node, set()).add(rank)

    def void(self) -> None:
        """The script begins at its first line; agents void theirs when they hear the plan."""
        self._of_rank.clear()

    def forget(self, node: str) -> None:
        for rank in self._read_by.pop(node, NOTHING):
            self._readers[rank].discard(node)


class NodePrompts:
    """A node's: of the ranks that are seated or rehearsed there."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._of_rank: dict[int, Prompts] = {}
        self._lent: set[int] = set()  # ranks of which the coordinator told since the last fence

    def fence(self) -> None:
        self._lent.clear()

    def borrow(self, prompts: Prompts) -> None:
        """From the coordinator: they are of the start that the job goes on from."""
        self._lent.add(prompts.rank)
        self.keep(prompts)

    def forget_own(self) -> set[int]:
        """The script may have begun anew without this node: only what it was told since then counts. Of these ranks."""
        self._of_rank = {rank: prompts for rank, prompts in self._of_rank.items() if rank in self._lent}
        return set(self._of_rank)

    def keep(self, prompts: Prompts) -> None:
        self._of_rank[prompts.rank] = prompts
        for trainer in self._crew.trainers.values():
            if trainer.rank == prompts.rank and trainer.state in (State.REHEARSING, State.PARKED):
                self._crew.tell(trainer, prompts)

    def of(self, rank: int) -> Prompts | None:
        return self._of_rank.get(rank)

    def void(self, start: Generation) -> None:
        """The script begins at its first line: peers may tell each other something else this time."""
        for rank in list(self._of_rank):
            self.keep(Prompts(rank=rank, start=start, complete=False, book=b""))

    def clear(self) -> None:
        self._of_rank.clear()

    def tell(self, trainer: Trainer) -> None:
        """Before the order to be that rank, on the same link."""
        if trainer.rank in self._of_rank:
            self._crew.tell(trainer, self._of_rank[trainer.rank])
