"""What nodes have frozen at a fence, as ballots: a version may be there that no vote has compared yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.features.corruption.coordinator.votes import Ballot
from deadpool.protocol.identity import Version
from deadpool.protocol.inventory_batches import CopyBatch

HOME_IS_GONE = ""
"""The node of a ballot of a rank whose own node is lost: its seal is at a holder."""


def frozen_ballots(members: Iterable[Member], watermark: Version) -> Iterator[tuple[Version, dict[int, Ballot]]]:
    """Yields versions after the watermark, the oldest first. A rank's own node comes before its holders."""
    found: dict[Version, dict[int, Ballot]] = {}
    held: list[CopyBatch] = []
    for member in members:
        if member.inventory is None:
            continue
        held += member.inventory.held.batches
        for batch in member.inventory.own.batches:
            _add(found, batch, member.node, watermark)
    for batch in held:
        _add(found, batch, HOME_IS_GONE, watermark)
    yield from sorted(found.items(), key=lambda item: (item[0].number, item[0].generation))


def _add(found: dict[Version, dict[int, Ballot]], batch: CopyBatch, node: str, watermark: Version) -> None:
    peers, version = batch.shared.peers, batch.version
    if not (peers and batch.has_replica and version.number > watermark.number):
        return
    ballots = found.setdefault(version, {})
    for rank in batch.ranks:
        if rank not in ballots:
            ballots[rank] = Ballot(rank=rank, node=node, digest=batch.replica_of(rank), peers=peers)
