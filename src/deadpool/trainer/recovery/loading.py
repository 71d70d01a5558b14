"""A snapshot is loaded while it arrives, and checked while it is loaded.

`EarlyLoad` loads a snapshot while it arrives, so that the way from holder to device takes only as long as its slower
half.

Runs on the script's thread, between rest and Restore.

The first loaded bytes destroy the version that the trainer stood at, and the loaded state is not valid before
Restore, which means that the agent has verified the whole snapshot. If a source fails, the next attempt begins from
the start. A fence ends the load: a survivor releases the slot before it reports that it rests. A newcomer is not
asked to rest: until it learns of its next seat it may read a slot that is already being written for that seat. This
is harmless, because a recovery whose load was superseded never reports Prepared.

`load_checked`, `find_damaged` and `is_record_as_sealed` check a snapshot from this node's own memory while it is
loaded, because memory may change without being written.

A snapshot that came over the network was checked by the agent as it arrived. A snapshot of this node was hashed when
it was captured and has not been checked since.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Arriving, Restore, SlotRef
from deadpool.protocol.seal import REGIONS, Geometry, Region, Seal, digest_of
from deadpool.snapshot.arena.checksums import HASHING_THREADS, digest_region
from deadpool.snapshot.arena.slot import Progress, region
from deadpool.snapshot.state.state import Restoring
from deadpool.trainer.current import Superseded

if TYPE_CHECKING:
    from deadpool.snapshot.state.state import ProtectedState
    from deadpool.trainer.job import Job


WORTH_BYTES = 8 << 20
"""A smaller snapshot is loaded after it has arrived."""

_POLL_S, _SLOWEST_POLL_S = 0.001, 0.016


def load_what_arrives(job: Job, generation: Generation) -> EarlyLoad | None:
    """Loads until Restore has come. None: nothing was loaded. Superseded: Restore will not come; no slot is in use."""
    session = job.session
    news = session.wait(lambda: session.look_for(Restore, generation) or session.look_for(Arriving, generation))
    if not isinstance(news, Arriving) or _bulk_bytes(news.seal) < WORTH_BYTES:
        return None
    early = EarlyLoad(job, news)
    try:
        _follow(job, generation, early)
    except Superseded:
        job.state.leave_restore()
        raise
    return early if early.has_begun else None


def _follow(job: Job, generation: Generation, early: EarlyLoad) -> None:
    """Polls often while bytes arrive, and waits for Restore between two polls."""
    session, pause_s = job.session, 0.0
    while session.wait(lambda: session.look_for(Restore, generation), timeout_s=pause_s) is None:
        pause_s = 0.0 if early.advance() else min(max(_POLL_S, 2 * pause_s), _SLOWEST_POLL_S)


class EarlyLoad:
    def __init__(self, job: Job, arriving: Arriving) -> None:
        self._job, self._ref, self._seal = job, arriving.slot, arriving.seal
        self._slot, self._geometry = job.session.unready_slot(arriving.slot)
        self._progress = Progress(self._slot)
        self._restoring: Restoring | None = None

    @property
    def has_begun(self) -> bool:
        return self._restoring is not None

    def is_of(self, ref: SlotRef, seal: Seal) -> bool:
        return (ref, seal.rank, seal.version) == (self._ref, self._seal.rank, self._seal.version)

    def advance(self) -> bool:
        """Loads what has arrived since the last call; returns whether there was anything. Does not wait."""
        if self._restoring is None:
            return self._begin()
        return self._restoring.load.advance(self._progress)

    def finish(self) -> int:
        """The agent has verified the slot. Returns how many bytes had been loaded by then."""
        assert self._restoring is not None
        return self._job.state.finish_restore(self._restoring, self._progress)

    def _begin(self) -> bool:
        """Begins only once the memory is registered: that takes little time and makes copies many times as fast."""
        if not self._job.session.registrar.is_ready(self._ref.segment):
            return False
        record = self._record()
        if record is None:
            return False
        with self._job.session.changed:
            self._job.session.core.restoring()
        self._restoring = self._job.state.begin_restore(record, self._slot, self._geometry, self._seal.extent)
        return True

    def _record(self) -> bytes | None:
        """The boundary record says where everything goes, so it is checked here: the agent checks only the whole."""
        if self._progress.read("record").leading_bytes != self._seal.extent.record_bytes:
            return None
        record = bytes(region(self._slot, self._geometry, self._seal.extent, "record"))
        return record if digest_region(memoryview(record)) == self._seal.digest.record else None


def _bulk_bytes(seal: Seal) -> int:
    return seal.extent.unique_bytes + seal.extent.replica_bytes


def load_checked(state: ProtectedState, slot: memoryview, geometry: Geometry, seal: Seal) -> Region | None:
    """Loads the snapshot. Returns the region that differs from its seal, if any: the loaded state is then unusable.

    The record is checked first, since it says where everything goes; the bulk is checked in parallel with the load,
    which takes about as long.
    """
    if not _is_as_sealed(slot, geometry, seal, "record", None):
        return "record"
    with ThreadPoolExecutor(1 + HASHING_THREADS, "check") as threads:
        bulk = threads.submit(_find_damaged, slot, geometry, seal, threads if HASHING_THREADS > 1 else None)
        state.restore(slot, geometry, seal.extent)
        return bulk.result()


def find_damaged(slot: memoryview, geometry: Geometry, seal: Seal) -> Region | None:
    """The region that differs from its seal, if any; nothing is loaded."""
    if not _is_as_sealed(slot, geometry, seal, "record", None):
        return "record"
    return _find_damaged(slot, geometry, seal, None)


def is_record_as_sealed(slot: memoryview, geometry: Geometry, seal: Seal) -> bool:
    return _is_as_sealed(slot, geometry, seal, "record", None)


def _find_damaged(
    slot: memoryview, geometry: Geometry, seal: Seal, threads: ThreadPoolExecutor | None
) -> Region | None:
    bulk: list[Region] = [name for name in REGIONS if name != "record"]
    return next((name for name in bulk if not _is_as_sealed(slot, geometry, seal, name, threads)), None)


def _is_as_sealed(
    slot: memoryview, geometry: Geometry, seal: Seal, name: Region, threads: ThreadPoolExecutor | None
) -> bool:
    return digest_region(region(slot, geometry, seal.extent, name), threads) == digest_of(seal.digest, name)
