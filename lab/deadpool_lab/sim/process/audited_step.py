"""What the process tells of an audited step: as trainer/step_audit.py does, with numbers for digests.

A device may err in such a step, and only there: what enters all ranks alike in any other step is not found, and is no
business of the protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool.protocol.causes import Miss
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import StepAudit, StepDigests
from deadpool_lab.sim.checking.history import State, Total, mix
from deadpool_lab.sim.faults.fault import seated

if TYPE_CHECKING:
    from deadpool_lab.sim.process.trainer_process import Process

PATIENCE_STEPS = 16
FENCE_S = 2.0


class AuditedStep:
    def __init__(self, process: Process) -> None:
        self._process, self._core = process, process.core
        self.order: StepAudit | None = None
        self._before: int | None = None
        self._watched = 0  # the number of the order that it belongs to: there may be a newer one
        self._gradient, self._reduced = 0, 0
        self._answered: tuple[StepAudit, Generation] | None = None

    # --- the step -----------------------------------------------------------------------------------------------------

    @property
    def is_watched(self) -> bool:
        """The step that is audited is computed now."""
        return self._before is not None and self._watched == self._process.world.checkers.step_audits.step

    def contribution(self, state: State) -> State:
        """What this rank gives to the sum over all ranks, as its device has computed it."""
        if not self.is_watched:
            return state
        given = self._process.machine.device.gradient_of(state)
        self._gradient = mix(given.unique, given.course)
        return given

    def received(self, total: Total) -> Total:
        """Returns the sum as it has come through the devices of the others."""
        if self.is_watched:
            for machine in seated(self._process.world):
                total = machine.device.passed_on(total) if machine is not self._process.machine else total
            self._reduced = mix(*total)
        return total

    def updated(self, state: State) -> State:
        """Returns the state after the step as this device has computed it."""
        return self._process.machine.device.update_of(state) if self.is_watched else state

    # --- its boundaries -----------------------------------------------------------------------------------------------

    def resumed(self, number: int) -> None:
        order = self.order
        self._before = _digest(self._process.state) if order is not None and number == order.number - 1 else None
        self._watched = order.number if order is not None else 0

    def at_boundary(self) -> bool:
        """Whether no version is to be captured here, because ranks wait for a fence."""
        order, before, live = self.order, self._before, self._core.live
        self._before = None
        assert live is not None
        if order is None or live.number < order.number - 1:
            return False
        is_first = order.generation == self._core.generation
        if live.number == order.number - 1:
            self._before, self._watched = _digest(self._process.state), order.number
        elif self._answered != (order, self._core.generation) and (is_first or live.number == order.number):
            self._answered = order, self._core.generation
            self._tell(order, before if live.number == order.number else None)
        return is_first and order.number <= live.number < order.number + PATIENCE_STEPS

    def miss(self) -> None:
        """Misses the capture: no plan may keep this memory either."""
        self._core.restoring()
        missed = self._core.missed(self._core.live, Miss.SWITCHED_OFF, "switched off") if self._core.live else None
        if missed is not None:
            self._process.say(missed)

    def _tell(self, order: StepAudit, before: int | None) -> None:
        told = StepDigests(generation=self._core.generation, rank=self._core.rank, number=order.number, late=True)
        if before is not None:
            told = StepDigests(
                generation=self._core.generation,
                rank=self._core.rank,
                number=order.number,
                before=before,
                gradients=self._gradient,
                reduced=self._reduced,
                after=_digest(self._process.state),
            )
        self._process.say(told)


def _digest(state: State) -> int:
    return mix(state.unique, state.replica, state.course)
