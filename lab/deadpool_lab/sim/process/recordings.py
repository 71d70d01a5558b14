"""What collectives gave ranks before their loops: recordings that this process was sent, and those that it makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Recording

if TYPE_CHECKING:
    from deadpool_lab.sim.process.trainer_process import Process

BOOK = b"an empty recording"


class Recordings:
    def __init__(self, process: Process) -> None:
        self._process = process
        self.told: Generation | None = None  # the start whose recordings the script was built with
        self._received: dict[int, Recording] = {}  # by rank

    def add(self, recording: Recording) -> None:
        self._received[recording.rank] = recording

    def has(self, rank: int) -> bool:
        return rank in self._received and not self._received[rank].is_void

    def on_built(self, rank: int) -> None:
        """The script was built as this rank, with what had been received for it."""
        if rank in self._received:
            self.told = self._received[rank].start

    def on_loop_begun(self) -> None:
        """The script has come to its loop from its first line, under real groups."""
        self.told = self._process.core.generation
        self.say(complete=False)

    def say(self, *, complete: bool) -> None:
        if self.told is not None:
            self._process.say(self._recording(self.told, complete=complete))

    def complete(self, step: int) -> None:
        """A newcomer completes them where no other process is left that could add to them."""
        core = self._process.core
        received = self._received.get(core.rank)
        if self.told is None or (step > 0 and received is not None and not received.complete):
            self.told = self.told or core.generation
            self.say(complete=True)
            self._received[core.rank] = self._recording(self.told, complete=True)

    def _recording(self, start: Generation, *, complete: bool) -> Recording:
        return Recording(rank=self._process.core.rank, start=start, complete=complete, book=BOOK)
