"""Whether copies are still what was sealed, as far as somebody has looked. Part of the agent's core.

Bytes that come from another node are verified as they arrive. A copy in the node's own memory is verified while its
trainer loads it, and until that is done nobody is told that the rank is prepared. Copies that were found to be broken,
here or at another node, are told with the next fence, so that no plan counts on them again.
"""

from __future__ import annotations

from dataclasses import replace

from deadpool.protocol.effects import AgentEffect, FetchFailed, ToCoordinator, Verified, VerifySlot
from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Live, Prepared, SlotRef
from deadpool.protocol.storehouse import Storehouse

Refuted = tuple[str, int, Version]
"""The copy at a node, of a rank, of a version."""


class Proofs:
    def __init__(self, store: Storehouse, out: list[AgentEffect]) -> None:
        self._store, self._out = store, out
        self._doubts: dict[int, tuple[SlotRef, Version]] = {}  # what a rank was given and nobody has looked at yet
        self._held_back: dict[int, Prepared] = {}
        self._refuted: list[Refuted] = []

    def fence(self) -> None:
        """Nobody is prepared any more. Doubts stay: who rests has what he was given."""
        self._held_back.clear()

    def refuted(self) -> tuple[Refuted, ...]:
        """Told once: the coordinator remembers it."""
        told, self._refuted = tuple(self._refuted), []
        return told

    # --- own copies --------------------------------------------------------------------------------------------------

    def trusts(self, rank: int) -> None:
        """It keeps what it has, or is given what was verified as it came."""
        self._doubts.pop(rank, None)

    def ask(self, rank: int, ref: SlotRef) -> None:
        copy = self._store.own[rank].slots[ref].copy
        assert copy is not None
        self._doubts[rank] = (ref, copy.seal.version)
        self._out.append(VerifySlot(slot=ref, copy=copy))

    def rests_at(self, live: Live) -> Live:
        return replace(live, clean=False) if live.rank in self._doubts else live

    def prepared(self, message: Prepared) -> None:
        if message.rank in self._doubts:
            self._held_back[message.rank] = message
        else:
            self._out.append(ToCoordinator(message=message))

    def verified(self, news: Verified) -> int | None:
        """The rank that was given something else than it should have been, if so. It stays in doubt."""
        rank = next((rank for rank, asked in self._doubts.items() if asked == (news.slot, news.version)), None)
        if rank is None:
            return None
        if not news.intact:
            self._drop(rank, news)
            return rank
        del self._doubts[rank]
        if rank in self._held_back:
            self._out.append(ToCoordinator(message=self._held_back.pop(rank)))
        return None

    def _drop(self, rank: int, news: Verified) -> None:
        slot = self._store.own[rank].find(news.version)
        if slot is not None and slot.ref == news.slot:
            self._store.own[rank].free(slot)

    # --- copies of others --------------------------------------------------------------------------------------------

    def fetch_failed(self, failed: FetchFailed) -> None:
        if failed.version is not None:
            self._refuted += [(node, failed.rank, failed.version) for node in failed.refuted]
