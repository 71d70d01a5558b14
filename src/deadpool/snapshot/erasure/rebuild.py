"""Rebuilds the snapshot of a lost member of a coded group, from blocks that other nodes have.

One thread per source reads its blocks in order, checks each against its digest, and adds it to the lost piece, which
lies in the newcomer's slot from the beginning: no more than one block per source is in memory besides. A rebuilt piece
is checked against the digest that the lost rank's own node has told its group, and that follows from its seal.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from deadpool.errors import DeadPoolError, TransferError
from deadpool.protocol.identity import Generation
from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import DAMAGED, PIECE_BYTES, Geometry, Seal, regions_sent
from deadpool.snapshot.arena.checksums import checksum
from deadpool.snapshot.arena.slot import clear_seal, region
from deadpool.snapshot.erasure.block_source import BlockReader, BlockSource
from deadpool.snapshot.erasure.galois import Coder, DataBlock, chosen_coder, clear
from deadpool.snapshot.erasure.lost_pieces import LostPiece, LostPieces, Task
from deadpool.snapshot.erasure.parity_slot import Contribution, coded_geometry
from deadpool.snapshot.transfer.client import TransferClient, Watch
from deadpool.snapshot.transfer.connection import Connection

_READS_AHEAD = 2

Report = Callable[[BlockSource, str], None]
"""Is called with a source that is of no use, and the reason. Threads of the rebuild call it, one at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildRequest:
    """A lost snapshot, the nodes that have blocks of its group, and the slot that it is to be written into."""

    generation: Generation
    group: RankGroup
    seal: Seal  # of the lost rank; `full` says whether its replica region was coded
    geometry: Geometry  # of the lost rank's slots, as of the slot here
    sources: tuple[BlockSource, ...]
    into: memoryview


def _ignore(source: BlockSource, reason: str) -> None:
    pass


class SnapshotRebuild:
    def __init__(
        self,
        client: TransferClient,
        request: RebuildRequest,
        *,
        watch: Watch = lambda name, leading_bytes: None,
        failed: Report = _ignore,
        report_damaged: Report = _ignore,
        coder: Coder | None = None,
    ) -> None:
        """`watch` is as for TransferClient.pull. `failed` is told of sources that end before all is read,
        `report_damaged` of those that have a damaged block, for each such block."""
        self._client, self._request = client, request
        self._watch, self._failed, self._report_damaged = watch, failed, report_damaged
        self._coder = coder or chosen_coder()
        self._group, self._member = request.group, request.group.member_of(request.seal.rank)
        self._readers = [BlockReader(source, request.group, request.seal.version) for source in request.sources]
        self._changed = threading.Condition()  # guards what follows
        self._opened: list[BlockReader] = []
        self._failures: dict[BlockSource, str] = {}
        self._catalog: dict[int, Contribution] = {}
        self._lost: LostPieces | None = None
        self._over: BaseException | None = None

    def run(self) -> None:
        """Returns when all coded regions are in the slot and verified, else raises TransferError. The header is cleared
        and not written, and no thread writes into the slot after this returns."""
        request = self._request
        clear_seal(request.into)
        self._targets = {
            name: region(request.into, request.geometry, request.seal.extent, name)
            for name in regions_sent(request.seal)
        }
        for name in self._targets:
            self._watch(name, 0)
        names = (f"rebuild-{reader.source.node}" for reader in self._readers)
        threads = [
            threading.Thread(target=self._serve, args=(reader,), name=name)
            for reader, name in zip(self._readers, names, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()  # bounded by the sockets' timeouts; an earlier return would leave a writer behind
        if self._over is not None:
            raise self._over
        if self._lost is None or self._lost.left:
            raise self._error("no source is left")

    def _error(self, reason: str) -> TransferError:
        seal = self._request.seal
        causes = [f"{source}: {cause}" for source, cause in self._failures.items()]
        return TransferError("; ".join([f"{seal.version} of rank {seal.rank} cannot be rebuilt: {reason}", *causes]))

    # --- a thread per source

    def _serve(self, reader: BlockReader) -> None:
        """Whatever goes wrong here ends the rebuild: the other threads wait without a deadline of their own."""
        try:
            self._read_from(reader)
        except BaseException as error:
            self._give_up(error)

    def _read_from(self, reader: BlockReader) -> None:
        try:
            with self._client.channel(reader.source.address, self._request.generation) as channel:
                reader.open(channel.lead)
                if self._await_others(reader):
                    self._read_blocks(reader, channel.lead)
        except DeadPoolError as error:
            self._lose(reader.source, str(error))

    def _read_blocks(self, reader: BlockReader, connection: Connection) -> None:
        """Asks for the next block before this one is read, so that the source does not pause in between."""
        asked: deque[Task] = deque()
        buffer = bytearray(PIECE_BYTES)
        while True:
            while len(asked) < _READS_AHEAD and (task := self._next(reader.source, wait=not asked)) is not None:
                reader.ask(connection, task.lost.place, task.piece)
                asked.append(task)
            if not asked:
                return
            task = asked.popleft()
            view = reader.receive(connection, task.lost.place, task.piece, buffer)
            if checksum(view) == self._digest_of(reader, task):
                self._add(task, view)
            else:
                self._damaged(task, reader.source)

    def _digest_of(self, reader: BlockReader, task: Task) -> int:
        if task.piece is None:
            return reader.row_digest(task.lost.place)
        assert isinstance(task.block, DataBlock)
        return self._catalog[task.block.member].digests.at(task.piece)

    def _add(self, task: Task, view: memoryview) -> None:
        lost = task.lost
        piece = lost.piece
        target = self._targets[piece.region][piece.offset : piece.offset + piece.size]
        with lost.lock:
            if not self._is_current(task):
                return
            if lost.begun != task.attempt:
                clear(target)
                lost.begun = task.attempt
            self._coder.fold(target, task.weight, view[: piece.size])
            if self._is_last(task):
                self._finish(lost, is_right=checksum(target) == lost.digest)

    # --- what the threads share

    def _await_others(self, reader: BlockReader) -> bool:
        """Returns whether blocks are to be read. It plans them once every source has answered or failed."""
        with self._changed:
            self._opened.append(reader)
            self._plan_if_all_answered()
            self._changed.wait_for(lambda: self._lost is not None or self._over is not None)
            return self._over is None and reader.source not in self._failures

    def _plan_if_all_answered(self) -> None:
        if self._lost is not None or len(self._opened) + len(self._failures) < len(self._readers):
            return
        for reader in sorted(self._opened, key=lambda reader: reader.source.member):
            self._learn(reader)
        if self._member not in self._catalog:
            self._fail("no parity of its group is left")
            return
        lost = LostPieces(self._group, self._member, self._catalog)
        for reader in self._opened:
            try:
                reader.check(self._catalog)
            except TransferError as error:
                self._note_failed(reader.source, str(error))
            else:
                lost.use(reader.source)
        self._lost = lost
        self._attempt(lost.plan_all)
        self._changed.notify_all()

    def _learn(self, reader: BlockReader) -> None:
        """Takes over what a parity was made of, if it was made of what is looked for."""
        if reader.contents is None:
            return
        found = reader.contents.contributions.get(self._member)
        if found is None:  # this is what the lost member itself kept for others
            return
        seal, full = self._request.seal, self._request.seal.full
        if found.seal == seal and found.geometry == coded_geometry(self._request.geometry, full=full):
            for member, contribution in reader.contents.contributions.items():
                self._catalog.setdefault(member, contribution)

    def _next(self, source: BlockSource, *, wait: bool) -> Task | None:
        with self._changed:
            while True:
                assert self._lost is not None
                if self._over is not None and not wait:
                    raise TransferError("the rebuild was given up")  # there are answers on the way
                if self._over is not None or self._lost.left == 0:
                    return None
                task = self._lost.next_task(source)
                if task is not None or not wait:
                    return task
                self._changed.wait()

    def _is_current(self, task: Task) -> bool:
        with self._changed:
            return task.is_current and self._over is None

    def _is_last(self, task: Task) -> bool:
        """Notes that the block is in. Returns whether it was the last one of its piece."""
        with self._changed:
            if not task.is_current:
                return False
            del task.lost.pending[task.block]
            return not task.lost.pending

    def _finish(self, lost: LostPiece, *, is_right: bool) -> None:
        with self._changed:
            assert self._lost is not None
            if is_right:
                for source in self._lost.finish(lost):
                    self._report_damaged(source, f"its parity does not give piece {lost.piece.number}")
                self._watch(lost.piece.region, self._lost.leading_bytes(lost.piece.region))
            else:
                self._attempt(functools.partial(self._lost.wrong, lost))
            self._changed.notify_all()

    def _damaged(self, task: Task, source: BlockSource) -> None:
        with self._changed:
            reason = f"the block of piece {task.lost.piece.number} is {DAMAGED}"
            self._report_damaged(source, reason)
            if self._lost is not None and task.is_current:
                self._failures.setdefault(source, reason)
                self._attempt(functools.partial(self._lost.damaged, task, source))
            self._changed.notify_all()

    def _lose(self, source: BlockSource, reason: str) -> None:
        with self._changed:
            if self._over is None:
                self._note_failed(source, reason)
                self._plan_if_all_answered()
                if self._lost is not None:
                    self._attempt(functools.partial(self._lost.lose, source))
            self._changed.notify_all()

    def _note_failed(self, source: BlockSource, reason: str) -> None:
        self._failures[source] = reason
        self._failed(source, reason)

    def _attempt(self, planning: Callable[[], None]) -> None:
        """Plans, or gives up if too few blocks are left."""
        try:
            planning()
        except TransferError as error:
            self._fail(str(error))

    def _fail(self, reason: str) -> None:
        self._over = self._over or self._error(reason)
        self._changed.notify_all()

    def _give_up(self, error: BaseException) -> None:
        with self._changed:
            self._over = self._over or error
            self._changed.notify_all()
