"""What protecting each rank of a node costs: time, the bytes of its snapshot, and the bytes that were sent to
holders."""

from __future__ import annotations

import statistics
import threading

from deadpool.protocol.agent.copies.capture_costs import RankCosts
from deadpool.protocol.agent.core import Agent
from deadpool.protocol.identity import Version


class SentBytes:
    """The last version that was pushed, by rank and holder, and the bytes that it took on the wire. Many threads write
    it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[tuple[int, str], tuple[Version, int]] = {}
        self.total = 0
        self.seconds = 0.0

    def note(self, rank: int, holder: str, version: Version, count: int, seconds: float) -> None:
        with self._lock:
            self._last[rank, holder] = (version, count)
            self.total += count
            self.seconds += seconds

    def last(self, rank: int, holder: str) -> tuple[Version, int] | None:
        with self._lock:
            return self._last.get((rank, holder))

    @property
    def gbps(self) -> float | None:
        return self.total / self.seconds / 1e9 if self.seconds else None


def rank_figures(core: Agent, sent: SentBytes) -> dict[str, dict[str, object]]:
    """Figures of every rank on this node that has a sealed snapshot."""
    ranks = (trainer.rank for trainer in core.trainers.seated() if trainer.rank is not None)
    return {str(rank): figures for rank in ranks if (figures := _figures(core, sent, rank))}


def _figures(core: Agent, sent: SentBytes, rank: int) -> dict[str, object] | None:
    shelf = core.copies.own.get(rank)
    copies = [slot.copy for slot in shelf.sealed() if slot.copy is not None] if shelf else []
    if not copies:
        return None
    newest = max(copies, key=lambda copy: copy.seal.version.number)
    extent = newest.seal.extent
    costs = core.capture_costs.ranks.get(rank, RankCosts())
    pushed = {holder.node: last for holder in core.copies.holders if (last := sent.last(rank, holder.node))}
    return {
        "unique_bytes": extent.unique_bytes,
        "replica_bytes": extent.replica_bytes,
        "record_bytes": extent.record_bytes,
        "peers": [peer for peer in newest.peers if peer != rank],
        "pushed_version": min((version.number for version, _ in pushed.values()), default=None),
        "stall_share": costs.stall_share,
        "copy_s": statistics.median(costs.copy_s) if costs.copy_s else None,
        "wire_bytes": {node: count for node, (_, count) in pushed.items()},
    }
