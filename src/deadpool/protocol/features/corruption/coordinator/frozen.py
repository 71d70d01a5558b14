"""What nodes have frozen at a fence, as ballots: a version may be there that no vote has compared yet.

Only versions that every rank has sealed are compared. Where a collective was aborted, its peers may have sealed
garbage, which is harmless because one of them has no seal (rule 8, sealing after the abort flag), and is no device's
error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.features.corruption.coordinator.votes import Ballot
from deadpool.protocol.identity import Version
from deadpool.protocol.inventory_batches import CopyBatch

HOME_IS_GONE = ""
"""The node of a ballot of a rank whose own node is lost: its seal is at a holder."""


def frozen_ballots(
    members: Iterable[Member], watermark: Version, world_size: int
) -> Iterator[tuple[Version, dict[int, Ballot]]]:
    """Yields versions after the watermark that all ranks have sealed, the oldest first. A rank's own node comes before
    its holders."""
    found: dict[Version, dict[int, Ballot]] = {}
    sealed = defaultdict[Version, set[int]](set)
    held: list[CopyBatch] = []
    for member in members:
        if member.inventory is None:
            continue
        held += member.inventory.held.batches
        for batch in member.inventory.own.batches:
            sealed[batch.version].update(batch.ranks)
            _add(found, batch, member.node, watermark)
    for batch in held:
        sealed[batch.version].update(batch.ranks)
        _add(found, batch, HOME_IS_GONE, watermark)
    whole = [item for item in found.items() if len(sealed[item[0]]) == world_size]
    yield from sorted(whole, key=lambda item: (item[0].number, item[0].generation))


def _add(found: dict[Version, dict[int, Ballot]], batch: CopyBatch, node: str, watermark: Version) -> None:
    peers, version = batch.shared.peers, batch.version
    if not (peers and batch.has_replica and version.number > watermark.number):
        return
    ballots = found.setdefault(version, {})
    for rank in batch.ranks:
        if rank not in ballots:
            ballots[rank] = Ballot(rank=rank, node=node, digest=batch.replica_of(rank), peers=peers)
