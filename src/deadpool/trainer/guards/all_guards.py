"""All guards of a job, behind the interface of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from deadpool.snapshot.state.state import ProtectedState
from deadpool.trainer.guards.carried_gradients import CarriedGradients
from deadpool.trainer.guards.carried_values import CarriedValues
from deadpool.trainer.guards.distributed_objects import PendingHandles
from deadpool.trainer.guards.guard import Guard
from deadpool.trainer.guards.loaders import DrawnBatches, UnknownLoaders
from deadpool.trainer.guards.state_in_variables import StateInVariables
from deadpool.trainer.process import torch_check
from deadpool.trainer.process.session import Session


class Guards:
    def __init__(self, session: Session, state: ProtectedState, carried: Callable[[], Iterable[Any]]) -> None:
        self._unknown_loaders = UnknownLoaders(session.findings, state.stateful, carried)
        self._values = CarriedValues(session.findings, state)
        self._variables = StateInVariables(session.findings, state, self._values.take_objects)
        self._guards: tuple[Guard, ...] = (
            self._values,
            self._variables,
            DrawnBatches(session.findings, state.stateful),
            self._unknown_loaders,
            CarriedGradients(session.findings, state.optimizers),
            *([] if torch_check.is_plain() else [PendingHandles(session.findings)]),
        )

    def leave_to_library(self) -> None:
        """A library owns the loop, and its integration keeps its state and the position of the loaders."""
        self._unknown_loaders.enabled = self._variables.enabled = self._values.enabled = False

    def enter_step(self, number: int) -> None:
        for guard in self._guards:
            guard.enter_step(number)

    def leave_step(self, number: int) -> None:
        for guard in self._guards:
            guard.leave_step(number)

    def at_boundary(self, number: int) -> None:
        for guard in self._guards:
            guard.at_boundary(number)
