"""All guards of a job, behind the interface of one."""

from __future__ import annotations

from deadpool.snapshot.state import ProtectedState
from deadpool.trainer.guards.guard import Guard
from deadpool.trainer.session import Session


class Guards:
    def __init__(self, session: Session, state: ProtectedState) -> None:
        self._guards: tuple[Guard, ...] = ()

    def enter_step(self, number: int) -> None:
        for guard in self._guards:
            guard.enter_step(number)

    def leave_step(self, number: int) -> None:
        for guard in self._guards:
            guard.leave_step(number)

    def at_boundary(self, number: int) -> None:
        for guard in self._guards:
            guard.at_boundary(number)
