"""The end of a job: done, failed, or abandoned after what is left of it was kept."""

from __future__ import annotations

from deadpool.protocol.coordinator.job import Job, Phase
from deadpool.protocol.coordinator.planner import what_is_left
from deadpool.protocol.coordinator.salvage import Salvaging
from deadpool.protocol.messages import Salvaged, Shutdown


class Ending:
    def __init__(self, job: Job, salvaging: Salvaging) -> None:
        self._job, self._salvaging = job, salvaging
        self.last_word = Shutdown(reason="", failed=False)

    def end(self, reason: str, *, failed: bool) -> None:
        out = self._job.out
        out.emit("failed" if failed else "completed", reason=reason)
        self.last_word = Shutdown(reason=reason, failed=failed)
        out.send_each(self._job.members, self.last_word)
        self._job.stay_in(Phase.ENDED)
        out.finish(reason, failed=failed)

    def end_if(self, untenable: str | None) -> None:
        """Why the job cannot go on; None: it can."""
        if untenable is not None:
            self.end(untenable, failed=True)

    def abandon(self, reason: str, now: float) -> None:
        """All are frozen, and there is nothing to go on with."""
        if self._salvaging.begin(reason, what_is_left(self._job.view())):
            self._job.enter(Phase.SALVAGING, now, self._job.deadlines.prepare_s)
        else:
            self.close()

    def salvaged(self, node: str, message: Salvaged) -> None:
        self._salvaging.hear(node, message)
        self.maybe_close()

    def maybe_close(self) -> None:
        if self._salvaging.is_over:
            self.close()

    def close(self) -> None:
        """What is not written by now never will be."""
        self.end(self._salvaging.last_word(), failed=True)
