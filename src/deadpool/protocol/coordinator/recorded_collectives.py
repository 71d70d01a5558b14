"""The ranks' recordings, as the coordinator keeps and lends them.

Nobody is told what he does not need: a node gets the recordings of a rank when it first rehearses or seats it, and again
whenever they are renewed.
"""

from __future__ import annotations

from collections.abc import Sequence

from deadpool.protocol.messages import Recording

NOTHING: frozenset[int] = frozenset()


class RecordingCache:
    """Which there are, and which nodes have been lent them."""

    def __init__(self) -> None:
        self._of_rank: dict[int, Recording] = {}
        self._readers: dict[int, set[str]] = {}  # by rank: nodes that have them, or will when they come
        self._read_by: dict[str, set[int]] = {}  # the same by node

    def bring(self, node: str, recordings: Recording) -> list[str]:
        """From the rank's own node. Returns who else has to be told."""
        self._of_rank[recordings.rank] = recordings
        others = sorted(self._readers.get(recordings.rank, set()) - {node})
        self.is_read_by(node, recordings.rank)
        return others

    def lend(self, node: str, ranks: Sequence[int]) -> list[Recording]:
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
