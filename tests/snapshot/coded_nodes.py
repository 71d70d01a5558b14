"""A coded group on loopback: each node has a sealed slot, a parity slot, a server and a client."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
from msgspec import structs
from snapshot_nodes import DEADLINE_S, GENERATION, MEMBER, VERSION

from deadpool.protocol.causes import Refusal
from deadpool.protocol.features.coding.stripes import parity_layout
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import REGIONS, Extent, Geometry, Region, pieces_of
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.arena.slot import compute_piece_digests, region
from deadpool.snapshot.erasure.block_source import BlockSource
from deadpool.snapshot.erasure.contribute import ContributeRequest, contribute
from deadpool.snapshot.erasure.galois import Coder
from deadpool.snapshot.erasure.parity_frames import ParityName
from deadpool.snapshot.erasure.parity_session import FoundParity, ParityCallbacks, ParitySession
from deadpool.snapshot.erasure.parity_slot import Contribution, ParitySlot, coded_geometry
from deadpool.snapshot.erasure.rebuild import RebuildRequest, SnapshotRebuild
from deadpool.snapshot.transfer import (
    FoundCopy,
    TransferClient,
    TransferRefused,
    TransferServer,
)
from deadpool_lab.workload.sealed_slot import seal_slot

PIECE = 512
"""Instead of 4 MiB, where a test takes the fixture `small_pieces`: many pieces, and rows, in few bytes."""

_MODULES = (
    "protocol.seal",
    "snapshot.arena.checksums",
    "snapshot.transfer.frames",
    "snapshot.transfer.snapshot_arrival",
    "snapshot.erasure.rebuild",
)


@contextmanager
def smaller_pieces(monkeypatch) -> Iterator[None]:
    for module in _MODULES:
        monkeypatch.setattr(f"deadpool.{module}.PIECE_BYTES", PIECE)
    _forget_sizes()
    yield
    _forget_sizes()


def _forget_sizes() -> None:
    pieces_of.cache_clear()
    parity_layout.cache_clear()


def shard(record: int, unique: int, replica: int, *, record_capacity: int | None = None) -> tuple[Geometry, Extent]:
    geometry = Geometry(record_capacity=record_capacity or record, unique_bytes=unique, replica_bytes=replica)
    return geometry, Extent(record_bytes=record, unique_bytes=unique, replica_bytes=replica)


class CodedNode:
    """One member of a group, with rank 10 + member."""

    def __init__(
        self, group: RankGroup, member: int, shards: list[tuple[Geometry, Extent]], full: bool, coder: Coder | None
    ) -> None:
        self.group, self.member, self.full = group, member, full
        self.geometry, self.extent = shards[member]
        self.segment = Segment.create(f"own-{member}", self.geometry, 1)
        self._fill()
        slot = self.segment.slot(0)
        rank = group.ranks[member]
        self.seal = seal_slot(slot, self.geometry, rank=rank, version=VERSION, extent=self.extent)
        self.digests = compute_piece_digests(slot, self.geometry, self.extent)
        others = tuple(coded_geometry(shards[other][0], full=full) for other in group.others(member))
        self.layout = parity_layout(group, member, others)
        self.parity_segment = Segment.create(f"parity-{member}", self.layout.geometry, 1)
        self.parity_segment.slot(0)[:] = b"\xaa" * self.layout.geometry.slot_bytes  # of an older version
        self.parity = ParitySlot(layout=self.layout, version=VERSION, view=self.parity_segment.slot(0), coder=coder)
        self.outcomes: queue.Queue[tuple[str, int, str]] = queue.Queue()
        self.refuses: str | None = None
        self.before_open: Callable[[], None] = lambda: None
        self.parities = ParityCallbacks(
            open=self._open,
            contributed=lambda each: self.outcomes.put(("contributed", each.member, "")),
            dropped=lambda each, reason: self.outcomes.put(("dropped", each.member, reason)),
            find=self._find_parity,
        )
        self.server = TransferServer(
            host="127.0.0.1",
            credentials=MEMBER,
            open=lambda *_: TransferRefused(refusal=Refusal.UNANSWERED),
            stored=lambda seal: None,
            dropped=lambda seal, reason: None,
            find=self._find,
            joint=lambda connection: ParitySession(connection, self.parities),
            deadline_s=DEADLINE_S,
        )
        self.address = self.server.start()
        self.client = TransferClient(credentials=MEMBER, deadline_s=DEADLINE_S)

    def _fill(self) -> None:
        noise = np.random.default_rng(self.member)
        for name in REGIONS:
            target = np.frombuffer(region(self.segment.slot(0), self.geometry, self.extent, name), np.uint8)
            target[:] = noise.integers(0, 256, len(target), np.uint8)

    def bytes_of(self, name: Region) -> bytes:
        return bytes(region(self.segment.slot(0), self.geometry, self.extent, name))

    def _open(self, contribution: Contribution, generation: Generation) -> ParitySlot | TransferRefused:
        self.before_open()
        return TransferRefused(refusal=Refusal.NO_ROOM, reason=self.refuses) if self.refuses else self.parity

    def _find(self, rank: int, version: Version) -> FoundCopy | None:
        if (rank, version) != (self.seal.rank, VERSION):
            return None
        return FoundCopy(fd=self.segment.fd, offset=0, seal=self.seal, geometry=self.geometry)

    def _find_parity(self, name: ParityName) -> FoundParity | None:
        if name != ParityName(group=self.group, member=self.member, version=VERSION):
            return None
        return FoundParity(fd=self.parity_segment.fd, offset=0, slot=self.parity)

    def contribution(self, target: int) -> Contribution:
        return Contribution(
            group=self.group,
            target=target,
            member=self.member,
            seal=structs.replace(self.seal, full=self.full),
            geometry=coded_geometry(self.geometry, full=self.full),
            digests=self.digests if self.full else replace(self.digests, replica=()),
        )

    def contribute_request(self, target: CodedNode, generation: Generation = GENERATION) -> ContributeRequest:
        return ContributeRequest(
            address=target.address,
            generation=generation,
            contribution=self.contribution(target.member),
            geometry=self.geometry,
            fd=self.segment.fd,
            slot_offset=0,
        )

    def contribute(self, target: CodedNode, generation: Generation = GENERATION) -> int:
        return contribute(self.client, self.contribute_request(target, generation))

    def sources(self) -> list[BlockSource]:
        names = {"node": f"n{self.member}", "address": self.address, "member": self.member}
        return [BlockSource(**names, is_parity=False), BlockSource(**names, is_parity=True)]

    def close(self) -> None:
        self.client.close()
        self.server.close()
        self.segment.close()
        self.parity.close()
        self.parity_segment.close()


class CodedGroup:
    def __init__(
        self, parities: int, shards: list[tuple[Geometry, Extent]], *, full: bool = True, coder: Coder | None = None
    ) -> None:
        self.group = RankGroup(ranks=tuple(10 + member for member in range(len(shards))), parities=parities)
        self._stack = ExitStack()
        self.nodes: list[CodedNode] = []
        for member in range(len(shards)):
            node = CodedNode(self.group, member, shards, full, coder)
            self._stack.callback(node.close)
            self.nodes.append(node)

    def protect(self) -> None:
        for node in self.nodes:
            for other in self.nodes:
                if other is not node:
                    node.contribute(other)
        for node in self.nodes:
            node.parity.seal()

    def newcomer(self, member: int) -> Newcomer:
        newcomer = Newcomer(self, member)
        self._stack.callback(newcomer.close)
        return newcomer

    def close(self) -> None:
        self._stack.close()


class Newcomer:
    """A node that takes the place of a lost member."""

    def __init__(self, coded: CodedGroup, member: int) -> None:
        self.lost = coded.nodes[member]
        self._coded = coded
        self.segment = Segment.create("newcomer", self.lost.geometry, 1)
        self.segment.slot(0)[:] = b"\x55" * self.lost.geometry.slot_bytes
        self.client = TransferClient(credentials=MEMBER, deadline_s=DEADLINE_S)
        self.failed: list[tuple[str, str]] = []
        self.damaged: list[tuple[str, str]] = []
        self.progress: list[tuple[str, int]] = []

    def rebuild(self, gone: Iterable[int] = (), *, sources: list[BlockSource] | None = None, coder=None) -> None:
        """`gone`: members that are lost besides."""
        away = {self.lost.member, *gone}
        left = [source for node in self._coded.nodes if node.member not in away for source in node.sources()]
        request = RebuildRequest(
            generation=GENERATION,
            group=self._coded.group,
            seal=structs.replace(self.lost.seal, full=self.lost.full),
            geometry=self.lost.geometry,
            sources=tuple(left if sources is None else sources),
            into=self.segment.slot(0),
        )
        SnapshotRebuild(
            self.client,
            request,
            watch=lambda name, leading: self.progress.append((name, leading)),
            failed=lambda source, reason: self.failed.append((source.node, reason)),
            report_damaged=lambda source, reason: self.damaged.append((source.node, reason)),
            coder=coder,
        ).run()

    def bytes_of(self, name: Region) -> bytes:
        return bytes(region(self.segment.slot(0), self.lost.geometry, self.lost.extent, name))

    def has_everything(self) -> bool:
        names = REGIONS if self.lost.full else ("record", "unique")
        return all(self.bytes_of(name) == self.lost.bytes_of(name) for name in names)

    def close(self) -> None:
        self.client.close()
        self.segment.close()
