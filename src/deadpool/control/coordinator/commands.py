"""What people ask a job with `deadpool`: each request gets an answer at once, and what follows from it is an input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from deadpool.config.checks import AUTO
from deadpool.control.coordinator.other_coordinators import DISMISS
from deadpool.control.coordinator.progress import DROPPED_FACT, STORAGE_FACT, StorageWatch, console_line
from deadpool.control.coordinator.requests import DrainRpc, ExaminationRpc, InjectionRpc
from deadpool.control.coordinator.status import describe
from deadpool.protocol.coordinator.leadership.leadership import Leadership
from deadpool.protocol.identity import Message
from deadpool.protocol.inputs import AuditAsked, CoordinatorInput, FeatureInput, SchemeAsked, StopAsked
from deadpool.protocol.messages import Answer, Ask
from deadpool.protocol.schemes import Scheme


class Commands:
    def __init__(
        self,
        leadership: Leadership,
        *,
        injections: InjectionRpc,
        storage: StorageWatch,
        facts: Callable[[], dict[str, dict[str, Any]]],
        feed: Callable[[CoordinatorInput], None],
        send: Callable[[str, Message], None],
    ) -> None:
        """`facts` is what each connected node last said of itself, and `send` sends a message to a node."""
        self._leadership, self._injections, self._storage = leadership, injections, storage
        self._facts, self._feed = facts, feed
        self._drains = DrainRpc(lambda: leadership.coordinator, feed=feed)
        self.examinations = ExaminationRpc(lambda: leadership.coordinator, send=send)
        self.last_fault: dict[str, Any] | None = None
        self.standbys: Callable[[], Mapping[str, object] | None] = lambda: None
        self.announced: Callable[[], Mapping[str, object] | None] = lambda: None  # why job.json is not written

    def answer(self, ask: Ask) -> Answer:
        if ask.what == DISMISS and not self._leadership.is_leader:
            self._feed(StopAsked(reason=str(ask.arguments.get("reason"))))
            return Answer(body={})
        if not self._leadership.is_leader:
            return Answer(
                body={}, error="this coordinator stands by: ask the one that job.json in the run folder names"
            )
        match ask.what:
            case "status":
                status = describe(self._leadership.coordinator, self._facts())
                return Answer(body=status | {"last_fault": self._fault_text(), **self._surroundings()})
            case "kill":
                return self._injections.order(ask.arguments)
            case "drain":
                return self._drains.drain(ask.arguments)
            case "replace":
                return self._drains.replace_straggler()
            case "protect":
                return self._use_scheme(str(ask.arguments.get("scheme")))
            case "audit":
                return self._ask_audit()
            case "stop":
                self._feed(StopAsked(reason="asked to stop"))
                return Answer(body={})
            case "pool_status" | "add_job" | "remove_job":
                return Answer(
                    body={}, error="this is the run folder of a job, and no pool: give the pool's folder as --pool"
                )
            case _:
                return self._ask_feature(ask)

    def _ask_feature(self, ask: Ask) -> Answer:
        match self._leadership.coordinator.features.request(ask.what, ask.arguments):
            case FeatureInput() as input:
                self._feed(input)
                return Answer(body={})
            case str() as refusal:
                return Answer(body={}, error=refusal)
            case None:
                known = "status, kill, drain, replace, protect, durable, audit, step_audit, doctor or stop"
                return Answer(body={}, error=f"{ask.what!r} is not a request of DeadPool: send {known}")

    def _use_scheme(self, text: str) -> Answer:
        core = self._leadership.coordinator
        try:
            scheme = Scheme.parse(text) if text != AUTO else None
        except ValueError as error:
            return Answer(body={}, error=f"scheme={text!r} cannot be used: {error}")
        if (refusal := core.refusal_of_scheme(scheme)) is not None:
            return Answer(body={}, error=f"snapshots stay as they are protected: {refusal}")
        before = core.scheme
        self._feed(SchemeAsked(scheme=scheme))
        return Answer(body={"scheme": str(core.scheme), "before": str(before)})

    def _ask_audit(self) -> Answer:
        """Answers `deadpool job audit`."""
        audit = self._leadership.coordinator.audit
        if (refusal := audit.refusal()) is not None:
            return Answer(body={}, error=refusal)
        self._feed(AuditAsked())
        return Answer(body={})

    def _fault_text(self) -> str | None:
        """Returns the last fault that this process has seen; a coordinator before it may have seen others."""
        return console_line(self.last_fault) if self.last_fault is not None else None

    def _surroundings(self) -> dict[str, object]:
        """What is no matter of the core: disks, and other coordinators."""
        facts = self._facts().values()
        told = [self._storage.facts(), self.announced(), *(each.get(STORAGE_FACT) for each in facts)]
        lost = [self._storage.losses(), *(each.get(DROPPED_FACT) for each in facts)]
        return {
            "storage": [each for each in told if each is not None],
            "dropped": [each for each in lost if each is not None],
            "standbys": self.standbys(),
        }
