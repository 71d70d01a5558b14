"""A snapshot is loaded while it arrives, so that the way from its holder to the device takes as long as the slower part
of it. On the script's thread, between rest and Restore.

At the trainer's own risk: what it stood at is gone from the first portion on, and what it has loaded is nothing before
Restore says that the agent has verified the whole. When a source fails there is another attempt, and the load begins
again. A fence ends it: the slot is let go before the trainer says that it rests. A newcomer is not asked to rest. Until
it hears of its next seat it may read a slot that is being written for that one already, in vain and to nobody's harm:
whatever it has loaded belongs to a walk that does not come to Prepared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Arriving, Restore, SlotRef
from deadpool.protocol.seal import Seal
from deadpool.snapshot.progress import Progress
from deadpool.snapshot.slot import digest_region, region
from deadpool.snapshot.state import Restoring
from deadpool.trainer.control_flow import Superseded

if TYPE_CHECKING:
    from deadpool.trainer.job import Job

WORTH_BYTES = 8 << 20
"""A smaller snapshot is loaded when it is there."""

_LOOK_S, _LOOK_RARELY_S = 0.001, 0.016


def load_what_arrives(job: Job, generation: Generation) -> EarlyLoad | None:
    """Until Restore has come. None: nothing was loaded. Superseded: it will not come, and no slot is read any more."""
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
    """Looks often while bytes come, and never longer than Restore takes to be heard."""
    session, pause_s = job.session, 0.0
    while session.wait(lambda: session.look_for(Restore, generation), timeout_s=pause_s) is None:
        pause_s = 0.0 if early.advance() else min(max(_LOOK_S, 2 * pause_s), _LOOK_RARELY_S)


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
        """Does a little, if there is something to do. Waits for nothing."""
        if self._restoring is None:
            return self._begin()
        return self._restoring.load.advance(self._progress)

    def finish(self) -> int:
        """The agent has verified the slot. Returns how many bytes had been loaded by then."""
        assert self._restoring is not None
        return self._job.state.finish_restore(self._restoring, self._progress)

    def _begin(self) -> bool:
        """Not before the memory is registered: that is soon over, and copies from it are many times as fast then."""
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
        """It says where everything goes, so it is checked here: the agent does so only when all is there."""
        if self._progress.read("record").leading_bytes != self._seal.extent.record_bytes:
            return None
        record = bytes(region(self._slot, self._geometry, self._seal.extent, "record"))
        return record if digest_region(memoryview(record)) == self._seal.digest.record else None


def _bulk_bytes(seal: Seal) -> int:
    return seal.extent.unique_bytes + seal.extent.replica_bytes
