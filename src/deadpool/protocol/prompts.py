"""The ranks' prompts as the coordinator keeps them, and which nodes have been lent which. Part of its core.

Nobody is told what he does not need: a node gets the prompts of a rank when it first rehearses or seats it, and again
whenever they are renewed.
"""

from __future__ import annotations

from deadpool.protocol.messages import Prompts


class PromptShelf:
    def __init__(self) -> None:
        self._of_rank: dict[int, Prompts] = {}
        self._readers: dict[int, set[str]] = {}  # by rank: nodes that have them, or will when they come

    def bring(self, node: str, prompts: Prompts) -> list[str]:
        """From the rank's own node. Returns who else has to be told."""
        self._of_rank[prompts.rank] = prompts
        readers = self._readers.setdefault(prompts.rank, set())
        others = sorted(readers - {node})
        readers.add(node)
        return others

    def lend(self, node: str, rank: int) -> Prompts | None:
        """What the node has to be told now, for it to have all there is. It will be told of news."""
        readers = self._readers.setdefault(rank, set())
        if node in readers:
            return None
        readers.add(node)
        return self._of_rank.get(rank)

    def void(self) -> None:
        """The script begins at its first line; agents void theirs when they hear the plan."""
        self._of_rank.clear()

    def forget(self, node: str) -> None:
        for readers in self._readers.values():
            readers.discard(node)
