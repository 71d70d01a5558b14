"""The data plane's part in erasure coding: contributions to the parities of other nodes and of this one, and rebuilds.

The core decides which slot a parity lies in and when it is whole; here are the sums in those slots, and the digests of
pieces, which a sender tells and a receiver checks before it adds a piece.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from msgspec.structs import replace

from deadpool.control.shells import JointAccess, JointShell
from deadpool.errors import CopyDamaged
from deadpool.events.event import Event
from deadpool.protocol.effects import AcceptOffer, Contribute, FetchCopy, HashSlot
from deadpool.protocol.features.coding.stripes import parity_layout
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.inputs import Received, ReceiveFailed, SourceDamaged
from deadpool.protocol.messages import Block, Copy, SlotRef
from deadpool.protocol.seal import DAMAGED, Digest, Geometry, Seal
from deadpool.snapshot.arena.checksums import PieceDigests, combine_pieces
from deadpool.snapshot.arena.slot import compute_piece_digests
from deadpool.snapshot.erasure.block_source import BlockSource
from deadpool.snapshot.erasure.contribute import ContributeRequest, contribute
from deadpool.snapshot.erasure.galois import Coder, chosen_coder
from deadpool.snapshot.erasure.parity_frames import ParityName
from deadpool.snapshot.erasure.parity_session import FoundParity, ParityCallbacks, ParitySession
from deadpool.snapshot.erasure.parity_slot import Contribution, ParitySlot, coded_geometry
from deadpool.snapshot.erasure.rebuild import RebuildRequest, SnapshotRebuild
from deadpool.snapshot.transfer import JointFrames, Midway, TransferRefused
from deadpool.snapshot.transfer.client import Watch
from deadpool.snapshot.transfer.connection import Connection


class CodedCopies(JointShell):
    def __init__(self, access: JointAccess) -> None:
        super().__init__(access)
        self._client, self._segment, self._deliver = access.client, access.segment, access.deliver
        self._hashers, self._note, self._offer = access.hashers, access.note, access.offer
        self._copies, self._on_loop = access.copies, access.on_loop
        self._callbacks = ParityCallbacks(
            open=self._open, contributed=self._contributed, dropped=self._dropped, find=self._find
        )
        self._coder: Coder | None = None  # None until it was told of
        self._digests: dict[SlotRef, PieceDigests] = {}  # of the snapshots in the slots of this node
        self._sums: dict[SlotRef, ParitySlot] = {}
        self._receiving: dict[tuple[int, Version], SlotRef] = {}  # contributions on their way, by rank
        self._lock = threading.Lock()
        self._hashing = threading.Lock()

    def forget(self, segment: int) -> None:
        for ref in [ref for ref in list(self._digests) if ref.segment == segment]:  # hashers add to it meanwhile
            self._digests.pop(ref, None)
        for ref in [ref for ref in self._sums if ref.segment == segment]:
            self._sums.pop(ref).close()

    # --- digests ------------------------------------------------------------------------------------------------------

    def hash(self, effect: HashSlot) -> Digest | None:
        """Hashes a parity to which all members have contributed."""
        parity = self._sums.get(effect.slot)
        if parity is None or not parity.is_complete or parity.digests is not None:
            return None
        return Digest(record=0, unique=combine_pieces(parity.seal(self._hashers)), replica=0)

    def on_hashed(self, slot: SlotRef, digests: PieceDigests) -> None:
        self._digests[slot] = digests

    def _digests_of(self, ref: SlotRef, seal: Seal, geometry: Geometry) -> PieceDigests:
        """Returns the digests as they were when the slot was sealed. A snapshot that came from another node is hashed
        when it is asked for."""
        known = self._digests.get(ref)
        if known is None or known.digest != seal.digest:
            with self._hashing:  # it is contributed to all other members at once: one of them hashes it
                known = self._digests.get(ref)
                if known is None or known.digest != seal.digest:
                    known = self._digests[ref] = self._hash_again(ref, seal, geometry)
        return known

    def _hash_again(self, ref: SlotRef, seal: Seal, geometry: Geometry) -> PieceDigests:
        found = compute_piece_digests(self._slot(ref), geometry, seal.extent, self._hashers)
        if found.digest != seal.digest:
            raise CopyDamaged(f"{seal.version} of rank {seal.rank} is {DAMAGED}")
        return found

    # --- to the parities of other nodes -------------------------------------------------------------------------------

    def send(self, effect: Contribute, midway: Midway | None) -> int:
        group, copy, holder = effect.group, effect.copy, effect.holder
        contribution = Contribution(
            group=group,
            target=effect.target,
            member=group.member_of(copy.seal.rank),
            seal=replace(copy.seal, full=effect.full),
            geometry=coded_geometry(copy.geometry, full=effect.full),
            digests=self._digests_of(effect.slot, copy.seal, copy.geometry),
        )
        segment = self._segment(effect.slot.segment)
        request = ContributeRequest(
            address=(holder.address.host, holder.address.port),
            generation=effect.generation,
            contribution=contribution,
            geometry=copy.geometry,
            fd=segment.fd,
            slot_offset=segment.offset(effect.slot.index),
        )
        return contribute(self._client, request, midway)

    # --- to the parities of this node ---------------------------------------------------------------------------------

    def begin(self, accepted: AcceptOffer) -> None:
        slot, target = accepted.slot, accepted.joint
        assert target is not None
        self._tell_coder_once()
        layout = parity_layout(target.group, target.member, target.geometries)
        self._sums[slot] = ParitySlot(layout=layout, version=target.version, view=self._slot(slot))

    def _tell_coder_once(self) -> None:
        """Nothing else shows that a library is missing: the bytes are the same, only later."""
        if self._coder is None:
            self._coder = chosen_coder()
            name = self._coder.name
            if self._coder.is_fast:
                self._note(Event(what="coder_chosen", detail={"coder": name}))
            else:
                self._note(Event(what="coder_slow", detail={"coder": name}))

    # --- called by the transfer server's threads ---------------------------------------------------------------------

    def frames(self, connection: Connection) -> JointFrames:
        return ParitySession(connection, self._callbacks)

    def _open(self, contribution: Contribution, generation: Generation) -> ParitySlot | TransferRefused:
        """Returns the sum that a contribution is added to. A fence frees its slot only when this thread has ended."""
        copy = Copy(seal=contribution.seal, geometry=contribution.geometry)
        answer = self._offer(copy, generation, contribution.group)
        if isinstance(answer, TransferRefused):
            return answer
        with self._lock:
            self._receiving[copy.seal.rank, copy.seal.version] = answer.slot
        return self._sums[answer.slot]

    def _contributed(self, contribution: Contribution) -> None:
        count = sum(piece.size for _, piece in contribution.pieces())
        copy = Copy(seal=contribution.seal, geometry=contribution.geometry)
        self._deliver(Received(slot=self._received(contribution), copy=copy, bytes_received=count))

    def _dropped(self, contribution: Contribution, reason: str) -> None:
        slot = self._received(contribution)
        self._deliver(ReceiveFailed(slot=slot, reason=reason, rank=contribution.seal.rank))

    def _received(self, contribution: Contribution) -> SlotRef:
        with self._lock:
            return self._receiving.pop((contribution.seal.rank, contribution.version))

    def _find(self, name: ParityName) -> FoundParity | None:
        return self._on_loop(lambda: self._look_up(name))

    def _look_up(self, name: ParityName) -> FoundParity | None:
        slot = self._copies.find_joint(name.group, name.member, name.version)
        parity = self._sums.get(slot.ref) if slot is not None else None
        if slot is None or parity is None:
            return None
        segment = self._segment(slot.ref.segment)
        return FoundParity(fd=segment.fd, offset=segment.offset(slot.ref.index), slot=parity)

    # --- rebuilds -----------------------------------------------------------------------------------------------------

    def rebuild(self, effect: FetchCopy, watch: Watch, failed: Callable[[str, str], None]) -> None:
        how, copy = effect.fetch.rebuild, effect.fetch.copy
        assert how is not None
        request = RebuildRequest(
            generation=effect.generation,
            group=how.group,
            seal=copy.seal,
            geometry=copy.geometry,
            sources=(*map(_snapshot, how.data), *map(_parity, how.joint)),
            into=self._slot(effect.slot),
        )
        damaged: set[BlockSource] = set()

        def report_damaged(source: BlockSource, reason: str) -> None:
            if source not in damaged:
                damaged.add(source)
                failed(source.node, reason)
                rank, version = how.group.ranks[source.member], copy.seal.version
                group = how.group if source.is_parity else None
                self._deliver(SourceDamaged(node=source.node, rank=rank, version=version, group=group))

        SnapshotRebuild(
            self._client,
            request,
            watch=watch,
            failed=lambda source, reason: failed(source.node, reason),
            report_damaged=report_damaged,
        ).run()

    def _slot(self, ref: SlotRef) -> memoryview:
        return self._segment(ref.segment).slot(ref.index)


def _snapshot(block: Block) -> BlockSource:
    return _source(block, is_parity=False)


def _parity(block: Block) -> BlockSource:
    return _source(block, is_parity=True)


def _source(block: Block, *, is_parity: bool) -> BlockSource:
    address = block.source.address
    node, place = block.source.node, (address.host, address.port)
    return BlockSource(node=node, address=place, member=block.member, is_parity=is_parity)
