"""When a trainer records its recording book, when it sends it, and when it rehearses with another's.

    live       record from the first line; send at the loop's beginning, and for good when the first step is completed
    newcomer   rehearse with the rank's book, not before there is one (main.py); wait for a part that the live rank has
               not come to yet
               seated at step 0, go on recording where the lost rank's book ends

The book goes out before the capture of the version that it belongs to: whoever can resume from a version finds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool.backend.collective_replay import CollectiveReplay
from deadpool.backend.recorded_collectives import Key, RecordedCollectives
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Recording, Rehearse, Seat

if TYPE_CHECKING:
    from deadpool.trainer.session import Session


class RecordingSchedule:
    """Main thread, except for what the session's monitor puts into `session.recordings`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._replay = CollectiveReplay()
        self._start: Generation | None = None  # of what is recorded, or of the recordings that were used
        self._book: tuple[Recording, RecordedCollectives] | None = (
            None  # the recordings last looked at, and what is in them
        )
        self._is_replayed = False
        self._has_waited = False

    def begin(self) -> None:
        """Before the first line of the script."""
        match self._session.playing:
            case Seat(resume=None, generation=generation):
                self._start = generation
                self._replay.record()
            case _:
                self._is_replayed = True
                self._replay.replay(self._find)

    def enter_loop(self) -> None:
        self._replay.mark()
        if self._replay.is_recording:
            self._send(self._replay.recorded, complete=False)

    def block_ended(self) -> None:
        """A rehearsal need not do what the script does between two steps."""
        if self._replay.is_recording:
            self._replay.pause()

    def step_completed(self) -> None:
        if self._replay.is_recording:
            self._replay.end()
            self._send(self._replay.recorded, complete=True)

    def unwound(self) -> None:
        if self._replay.is_recording:
            self._replay.rewind()

    def attached(self, step: int) -> None:
        """Real groups from here on. Work begins at `step`; in step 0 there is more to record."""
        if not self._is_replayed:
            return
        self._is_replayed = False
        self._replay.end()
        recordings = self._recordings() or self._lost_recordings()
        if recordings.complete:
            return
        self._start = recordings.start
        if step == 0:
            self._replay.record_first_step(self._read(recordings).copy())
        else:
            self._send(self._read(recordings), complete=True)  # nobody is left who could add to it

    def _lost_recordings(self) -> Recording:
        """Nobody has them any more. Said, so that whoever rehearses this rank does not wait for them for ever."""
        session = self._session
        self._start = session.core.generation
        self._send(RecordedCollectives(), complete=True)
        return Recording(rank=session.rank, start=self._start, complete=True, book=b"")

    def _send(self, book: RecordedCollectives, *, complete: bool) -> None:
        session = self._session
        assert self._start is not None
        session.send(Recording(rank=session.rank, start=self._start, complete=complete, book=book.pack()))
        if book.closed is not None:
            session.emit("recordings_cut", reason=book.closed)

    # --- as one who rehearses ----------------------------------------------------------------------------------------

    def _find(self, key: Key) -> tuple[bytes, ...] | None:
        """May wait, for as long as this is a rehearsal and the live rank has not completed its first step."""
        found = self._look_up(key)
        if found is None:
            if not self._has_waited:
                self._session.emit("awaits_recordings", operation=key[0])
            self._has_waited = True
            found = self._session.wait(lambda: self._look_up(key))
        return found or None

    def _look_up(self, key: Key) -> tuple[bytes, ...] | None:
        """None: wait for it. Empty: there is no such entry and there will be none, or nobody can wait."""
        recordings = self._recordings()
        if recordings is not None:
            self._start = self._start or recordings.start
            found = self._read(recordings).get(key)
            if found is not None or recordings.complete:
                return found or ()
        return None if self._is_rehearsal() else ()

    def _is_rehearsal(self) -> bool:
        return isinstance(self._session.role, Rehearse)

    def _recordings(self) -> Recording | None:
        return self._session.recordings.get(self._session.rank)

    def _read(self, recordings: Recording) -> RecordedCollectives:
        if self._book is None or self._book[0] is not recordings:
            self._book = (recordings, RecordedCollectives.unpack(recordings.book))
        return self._book[1]
