"""When a trainer records its small collectives, when it sends the recording, and when it replays that of another.

    live       records from the first line of the script; sends the recording when its loop begins, and again, complete,
               when its first step is completed
    newcomer   rehearses with the recording of the live rank, once there is one (main.py); waits for results that the
               live rank has not recorded yet; if it is seated at step 0, goes on recording where the lost rank stopped

Where torch lacks what recording needs, a void one is sent, which names that torch: newcomers must have the same.

The recording is sent before the version that it belongs to is captured, so it exists wherever that version is resumed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from deadpool.backend.interception import CollectiveReplay
from deadpool.backend.recorded_collectives import Key, RecordedCollectives
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Recording, Rehearse, Seat
from deadpool.trainer.process import torch_check

if TYPE_CHECKING:
    from deadpool.trainer.process.session import Session


class RecordingSchedule:
    """Main thread only; the monitor thread of the session puts messages into `session.recordings`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._replay = CollectiveReplay()
        self._start: Generation | None = None  # the generation in which the recording began that is made or replayed
        self._unpacked: tuple[Recording, RecordedCollectives] | None = None  # the message read last, and its content
        self._loop_began = 0.0
        self._is_replayed = False
        self._has_waited = False

    def begin(self) -> None:
        """Called before the first line of the script."""
        match self._session.playing:
            case Seat(resume=None, generation=generation):
                self._start = generation
                self._replay.record()
            case _:
                self._is_replayed = True
                self._replay.replay(self._find)

    def enter_loop(self) -> None:
        self._replay.mark()
        self._loop_began = time.time()
        if self._replay.is_recording:
            self._send(self._replay.recorded, complete=False)
        elif torch_check.is_plain():  # a void one, so nobody rehearses with it
            self._session.send(self._named(start=self._session.core.generation, complete=False, book=b""))

    def block_ended(self) -> None:
        """Nothing is recorded between two steps, because a rehearsal does not run that code."""
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
        """The groups are real from here on, and work begins at `step`. In step 0 there is more to record."""
        if not self._is_replayed:
            return
        self._is_replayed = False
        self._replay.end()
        recordings = self._recordings() or self._lost_recordings()
        self._start = recordings.start
        self._loop_began = recordings.loop_began or self._loop_began
        if recordings.complete:
            if not recordings.torch:  # it came with a checkpoint: from here on it is of this torch
                self._send(self._read(recordings), complete=True)
            return
        if step == 0:
            self._replay.record_first_step(self._read(recordings).copy())
        else:
            self._send(self._read(recordings), complete=True)  # no process is left that could add to it

    def _lost_recordings(self) -> Recording:
        """No node has the recording any more. An empty one is sent, so that no rehearsal of this rank waits for it."""
        self._start = self._session.core.generation
        self._send(RecordedCollectives(), complete=True)
        return self._named(start=self._start, complete=True, book=b"")

    def _send(self, recorded: RecordedCollectives, *, complete: bool) -> None:
        session = self._session
        assert self._start is not None
        session.send(self._named(start=self._start, complete=complete, book=recorded.pack()))
        if recorded.closed is not None:
            session.emit("recordings_cut", reason=recorded.closed)

    def require_same_torch(self, rank: int) -> None:
        """Unsuitable: the live rank has another one."""
        recordings = self._session.recordings.get(rank)
        if recordings is not None and not is_of_same_torch(recordings):
            raise torch_check.different(recordings.torch, of=f"rank {rank} of the job")

    def _named(self, *, start: Generation, complete: bool, book: bytes) -> Recording:
        return Recording(
            rank=self._session.rank,
            start=start,
            complete=complete,
            book=book,
            loop_began=self._loop_began,
            torch=torch_check.name(),
        )

    # --- in a rehearsal ----------------------------------------------------------------------------------------------

    def _find(self, key: Key) -> tuple[bytes, ...] | None:
        """Waits for the result while this process rehearses and the live rank has not completed its first step."""
        found = self._look_up(key)
        if found is None:
            if not self._has_waited:
                self._session.emit("awaits_recordings", operation=key[0])
            self._has_waited = True
            found = self._session.wait(lambda: self._look_up(key))
        return found or None

    def _look_up(self, key: Key) -> tuple[bytes, ...] | None:
        """None: wait for the result. Empty: there will never be one, or survivors wait for this process."""
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
        if self._unpacked is None or self._unpacked[0] is not recordings:
            self._unpacked = (recordings, RecordedCollectives.unpack(recordings.book))
        return self._unpacked[1]


def is_of_same_torch(recordings: Recording) -> bool:
    """One that came with a checkpoint names none, and may be of any."""
    return recordings.torch in ("", torch_check.name())
