"""The journal of a protected job, and actions that wait until their step is final.

`JobJournal` and `DeliveryThread`: the journal of a protected job: `job.log`, `job.log_to` and `job.on_final`, as a
part of the boundary record.

The script's thread logs values and completes steps; a separate thread delivers final entries to the sinks, so that
no step waits for a disk or a server. A rehearsal keeps no entries and opens no sinks.

`FinalActions`: the actions that wait in `job.on_final` until their step is final. They are closures, so they end
with the process.

The boundary record carries how many actions wait for each step, so that a process that takes over the rank can
report which ones were lost.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from deadpool.host.notes import note
from deadpool.journal.entry import Run, Sink, StepDraft, Undelivered
from deadpool.journal.jsonl import default_sink
from deadpool.journal.step_values import Delivery, StepValues, finished, new_run_id, ranges
from deadpool.trainer.process.session import Session

Action = Callable[[], None]


class FinalActions:
    def __init__(self) -> None:
        self._waiting: list[tuple[int, Action]] = []
        self._settled = 0  # actions of steps below this one have run
        self._redone = range(0)  # steps that are computed again although they were final
        self._recorded: dict[int, int] = {}  # by step: how many actions waited at the version that was restored

    def add(self, step: int, action: Action) -> None:
        if step not in self._redone:
            self._waiting.append((step, action))

    def settle(self, final: int) -> None:
        """Runs the actions of steps below `final`. If one raises, those after it run at the next call."""
        self._settled = max(self._settled, final)
        for due in [each for each in self._waiting if each[0] < final]:
            self._waiting.remove(due)
            due[1]()

    def counts(self) -> dict[int, int]:
        return dict(Counter(step for step, _ in self._waiting))

    def restore(self, counts: dict[int, int]) -> None:
        self._recorded = counts

    def resume(self, number: int) -> list[int]:
        """Steps from `number` on are computed again. Returns the steps whose actions are not in this process and may
        never have run."""
        self._waiting = [(step, action) for step, action in self._waiting if step < number]
        self._redone = range(number, self._settled)
        own, recorded, self._recorded = self.counts(), self._recorded, {}
        return sorted(step for step in recorded if self._settled <= step < number and step not in own)


JOURNAL = "journal"
"""The name of this part in the boundary record."""
END_S = 30.0
"""Limit for the delivery of the last entries when the job ends."""
FAILURE_S = 2.0
"""The same limit after the script has failed, when the other ranks wait for this process to end."""
_GATHER_S = 0.1  # minimum between two deliveries: each is a write to a disk, and steps may be short


class JobJournal:
    def __init__(self, session: Session, rank: int | None = None) -> None:
        """`rank`: one that this process carries; None: its own."""
        self._session, self._rank = session, rank
        self._values = StepValues()
        self._undelivered = Undelivered(self._report_dropped)
        self._actions = FinalActions()
        self._run_id = ""
        self._ended: StepDraft | None = None  # the values of the step whose block ended last
        self._dry = False
        self._delivery_thread: DeliveryThread | None = None

    @property
    def rank(self) -> int:
        return self._session.rank if self._rank is None else self._rank

    # --- the script's calls ------------------------------------------------------------------------------------------

    def log(self, step: int, values: dict[str, Any]) -> None:
        self._values.log(step, values)

    def log_to(self, sinks: Sequence[Sink]) -> None:
        self._values.log_to(sinks)

    def on_final(self, step: int, action: Action) -> None:
        """Ignores an action that a rehearsal registers: the live rank has registered it too."""
        if not self._dry and not self._session.groups.detached:
            self._actions.add(step, action)

    # --- steps -------------------------------------------------------------------------------------------------------

    def last_values(self) -> Iterator[tuple[str, str, bool]]:
        """Yields the values of the step whose block ended last, with whether they may be times."""
        return self._ended.values() if self._ended is not None else iter(())

    def begin(self) -> None:
        """The script starts from its first line: no step of an earlier start was ever final."""
        self._run_id, self._undelivered = new_run_id(), Undelivered(self._report_dropped)

    def enter_step(self, number: int) -> None:
        self._values.enter_step(number)

    def leave_step(self) -> None:
        """The step's block has ended; whether the step counts is not known yet."""
        self._ended = self._values.leave_step()

    def complete_step(self) -> None:
        """The step counts. Called before the boundary record of the next version is taken."""
        entry = finished(self._ended)
        if entry is not None:
            self._undelivered.add(entry)

    def set_dry(self, dry: bool) -> None:
        self._dry = dry

    def settle(self, final: int) -> None:
        """Steps below `final` are final: their actions run. Called at a step boundary, after its record was taken."""
        self._start()
        self._actions.settle(final)

    def resume(self, number: int) -> None:
        """Steps from `number` on are computed again, and their actions wait again."""
        lost = self._actions.resume(number)
        if lost:
            self._session.emit("actions_lost", step=number, steps=lost)
            note(
                f"actions in job.on_final for step {ranges(lost)} of rank {self.rank} were lost with the "
                "process that had this rank, and may not have run; values in job.log are complete"
            )
        self._start()

    def finish(self, final: int) -> None:
        """Every rank has completed its last step, so all steps below `final` are final."""
        self._actions.settle(final)
        self.close(END_S, final)

    def close(self, timeout_s: float, final: int | None = None) -> None:
        """Delivers the final entries and closes the sinks. Without `final`, the last known final step counts."""
        delivery_thread, self._delivery_thread = self._delivery_thread, None
        if delivery_thread is None:
            return
        end = self._session.final_number if final is None else final
        delivery_thread.close(end, timeout_s)
        left = [entry.step for entry in self._undelivered.final(0, end)]
        if left:
            self._report_dropped(left)

    # --- a part of the boundary record -------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {"run": self._run_id, "actions": self._actions.counts(), **self._undelivered.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._run_id = state["run"]
        self._actions.restore(state["actions"])
        self._undelivered.load_state_dict(state)

    # --- delivery ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Starts the delivery at the first entry. A rehearsal never gets here."""
        if self._delivery_thread is None and not self._undelivered.is_empty:
            run = Run(self._run_id, self.rank)
            sinks = self._values.sinks or (default_sink(run.rank),)
            self._delivery_thread = DeliveryThread(
                self._session, Delivery(self._undelivered, run, sinks, self._report_failed)
            )
            self._delivery_thread.start()

    def _report_failed(self, sink: str, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        self._session.emit("journal_failed", sink=sink, reason=reason)
        note(f"the journal cannot be written to {sink}: {reason}; training goes on, and the entries are kept for later")

    def _report_dropped(self, steps: list[int]) -> None:
        self._session.emit("journal_dropped", steps=ranges(steps), count=len(steps))
        note(f"journal entries of rank {self.rank}, step {ranges(steps)}, were dropped: not every sink has them")


class DeliveryThread:
    """Delivers entries as their steps become final."""

    def __init__(self, session: Session, delivery: Delivery) -> None:
        self._session, self._delivery = session, delivery
        self._end: int | None = None  # once set: entries of steps below this one are delivered, then the thread ends
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._deliver, name="deadpool-journal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, end: int, timeout_s: float) -> None:
        with self._session.changed:
            self._end, self._deadline = end, time.monotonic() + timeout_s
            self._session.changed.notify_all()
        self._thread.join(timeout_s + 1.0)  # a sink that does not return is abandoned

    def _deliver(self) -> None:
        session, delivery = self._session, self._delivery
        while self._end is None:
            session.wait(self._is_due)
            delivery.deliver(session.final_number)
            session.wait(self._is_closing, timeout_s=max(_GATHER_S, delivery.pause_s()))
        delivery.finish(self._end, self._deadline)

    def _is_due(self) -> bool | None:
        return True if self._end is not None or self._delivery.has_work(self._session.final_number) else None

    def _is_closing(self) -> bool | None:
        return True if self._end is not None else None
