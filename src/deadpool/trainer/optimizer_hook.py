"""What is done before an optimizer changes the state: the copy of the state before it is decided.

By prediction, either the rest of the copy is issued and the optimizer waits on the device, or the copy is given up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deadpool.errors import Unwind
from deadpool.snapshot.state.state import ProtectedState
from deadpool.trainer.audit import AuditedRank
from deadpool.trainer.capture.capture import Capturer
from deadpool.trainer.loop import Arguments, after_closure
from deadpool.trainer.process import forked_child
from deadpool.trainer.process.session import Session
from deadpool.trainer.step_audit import AuditedStep


class OptimizerHook:
    def __init__(
        self,
        session: Session,
        state: ProtectedState,
        capturer: Capturer,
        audit: AuditedRank,
        audited_step: AuditedStep,
        *,
        is_dry: Callable[[], bool],
    ) -> None:
        self._session, self._state, self._capturer, self._audit = session, state, capturer, audit
        self._audited_step, self._is_dry = audited_step, is_dry

    def register(self) -> None:
        for optimizer in self._state.optimizers:
            optimizer.register_step_pre_hook(self._before_step)

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        if self._is_dry() or forked_child.is_child():
            return None
        self._session.pending_injections.taken(optimizer)
        self._audit.took(optimizer)
        self._audited_step.took(optimizer)
        later = after_closure(args, kwargs, self._before_update)
        if later is None:
            self._before_update()
        return later

    def _before_update(self) -> None:
        """The state changes next: garbage gradients of an aborted collective are kept out."""
        self._audit.before_update()
        self._capturer.settle()
        self._state.before_update()
        with self._session.changed:
            if self._session.core.is_aborted:
                raise Unwind
            self._session.core.optimizer_began()
