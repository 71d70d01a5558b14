"""This rank's part in an audit of exactness: it tells its digests, lets the step be computed again, and may end.

    first pass   at the version of the order it tells its digests, and captures nothing from there on. Once all ranks
                 have told theirs, the one that is named ends behind its optimizer, so that others are cut off in
                 whatever comes after it, or wait for the fence at the end of the step, with all that it has done
    inside       it captures as ever, and stops in the next step before its optimizer: it may have written to its state
                 by then, and has to go back to the version at which it still stands
    redo         in a later generation it comes to that version again, and tells its digests again, and whether anything
                 that shows what steps compute has changed since the version that it went back to: if nothing has, equal
                 digests prove nothing

If no fault comes within some steps, the coordinator that gave the order was lost: it captures again.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Audit, Digested, Part
from deadpool.protocol.messages.rehearsals import PartKind
from deadpool.snapshot.arena.checksums import checksum
from deadpool.trainer.capture.boundary_groups import GROUPS
from deadpool.trainer.job_journal import JOURNAL, JobJournal
from deadpool.trainer.structure_news import StructureNews

if TYPE_CHECKING:
    from deadpool.trainer.job import Job

PATIENCE_STEPS = 16
FENCE_S = 2.0
_COMMIT_S = 10.0  # for a stop inside of a step: until all nodes hold the version
NO_STATE = frozenset({GROUPS, JOURNAL})
"""Objects in the record that are no state of the script."""
_INPUTS: tuple[PartKind, ...] = ("position", "random", "modes", "floats")
"""Parts that change although nothing of what is protected is computed: batches are drawn all the same."""


def logged_parts(journal: JobJournal) -> Iterator[Part]:
    for key, text, may_be_time in journal.last_values():
        yield Part(kind="logged", name=key, digest=checksum(text.encode()), decides=not may_be_time)


class AuditedRank:
    """Main thread only."""

    def __init__(self, job: Job, journal: JobJournal, structure_news: StructureNews) -> None:
        self._job, self._journal, self._structure_news = job, journal, structure_news
        self._taking: list[Optimizer] = []  # optimizers that took gradients in the step
        self._answered: tuple[Generation, int] | None = None  # the first pass that is behind this process
        self._hooks: list[Any] = []
        self._went_back_to: frozenset[Part] = frozenset()  # the state of the version that was put back, in an audit
        self._ends_in_step = False  # known when it was entered
        self._waits_for_fence = False  # at the end of this step: the other rank ends in it
        self._stops_here = False  # inside of this step

    def at_boundary(self) -> bool:
        """Whether no version is to be captured here."""
        session, number = self._job.session, self._job.number
        order = session.audit
        if order is None:
            return False
        is_first_pass = order.generation == session.core.generation
        asked = order.generation, order.number
        if is_first_pass and asked != self._answered and number >= order.number:
            self._answered = asked
            would_be_lost = order.rank == session.rank and session.served_stores.is_serving
            if would_be_lost or self._structure_news.is_irreplaceable:
                self._tell(order, (), irreplaceable=True)
                return False
            self._tell(order, self._parts(inside=order.inside) if number == order.number else ())
            self._stops_here = order.inside and number == order.number
        elif not is_first_pass and number == order.number and not order.inside:
            parts = self._parts(inside=False)
            moved = any(each.decides and each.kind not in _INPUTS for each in {*parts} - self._went_back_to)
            self._tell(order, parts, moved=moved)
        return is_first_pass and not order.inside and order.number <= number < order.number + PATIENCE_STEPS

    def resumed(self, number: int) -> None:
        """The state of this version was put back."""
        self._stops_here = False
        order = self._job.session.audit
        if order is None or not order.ends:
            return
        parts = self._parts(inside=True)
        self._went_back_to = frozenset(parts)
        if order.inside and order.number == number:
            self._tell(order, parts)

    def _parts(self, *, inside: bool) -> tuple[Part, ...]:
        """What the step before has logged, and which gradients it took, is known where it was computed."""
        if inside:
            return self._job.state.parts(NO_STATE)
        taken = [param for each in self._taking for group in each.param_groups for param in group["params"]]
        return (*logged_parts(self._journal), *self._job.state.parts(NO_STATE, taken))

    def _tell(self, order: Audit, parts: tuple[Part, ...], *, irreplaceable: bool = False, moved: bool = True) -> None:
        session = self._job.session
        session.send(
            Digested(
                generation=session.core.generation,
                rank=session.rank,
                number=order.number,
                parts=parts,
                irreplaceable=irreplaceable,
                moved=moved,
                named=session.findings.rules,
            )
        )

    # --- the end of the rank -----------------------------------------------------------------------------------------

    def before_update(self) -> None:
        """Inside of the step that is audited, ranks stop here, or at its end if it has no optimizer. The copy of the
        version that they still stand at is awaited, whatever it costs."""
        if not self._stops_here:
            return
        self._stops_here = False
        session, order = self._job.session, self._job.session.audit
        self._job.capturer.finish()
        session.wait(lambda: session.core.is_aborted or self._is_over or self._is_to_end or None, timeout_s=_COMMIT_S)
        if self._is_to_end:
            self._end_here()
        elif order is not None and not session.core.is_aborted and not self._is_over:
            self._tell(order, ())

    def took(self, optimizer: Optimizer) -> None:
        """The gradients of its parameters, in this step."""
        self._taking.append(optimizer)

    def enter_step(self) -> None:
        self._taking.clear()
        order = self._job.session.audit
        ends_later = self._ends_in_this_generation and order is not None and not order.inside
        self._ends_in_step = ends_later and self._is_to_end
        self._waits_for_fence = ends_later and not self._ends_in_step
        if self._ends_in_step:
            self._hooks = [each.register_step_post_hook(self._end_here) for each in self._job.state.optimizers]

    def leave_step(self, *, completed: bool) -> None:
        """Ends a rank without an optimizer with its step. An order that came in the middle is for the next one: it may
        have come behind the optimizer."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if not completed:
            return
        self.before_update()
        if self._ends_in_step:
            self._end_here()
        elif self._waits_for_fence:
            self._job.session.await_halt(FENCE_S)

    @property
    def _is_over(self) -> bool:
        """The audit that this rank has answered; another one may have been ordered since."""
        order = self._job.session.audit
        return order is None or (order.generation, order.number) != self._answered

    @property
    def _ends_in_this_generation(self) -> bool:
        order = self._job.session.audit
        return order is not None and order.ends and order.generation == self._job.session.core.generation

    @property
    def _is_to_end(self) -> bool:
        order, session = self._job.session.audit, self._job.session
        return self._ends_in_this_generation and order is not None and order.rank == session.rank

    def _end_here(self, *_: Any) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
