"""Events are handed to hooks, and not too often.

`CallLimit`: how often a hook is called: a job in trouble logs many events, and nobody reads a hundred messages.

`HookTarget`, `Hook` and `EventHooks` hand events to hooks. Each hook has a thread and a queue of its own, so that one
that hangs holds up nobody: not the coordinator, not another hook.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from deadpool.config.orders import ON_EVENT, HookRule
from deadpool.control.hooks.calls import Command, Webhook
from deadpool.events.event import Event
from deadpool.events.types import BY_NAME

AT_MOST = 10
WITHIN_S = 60.0
ALWAYS = {"failed", "completed", "no_plan", "no_progress"}
"""Ends of jobs: they come once, and nothing comes after them that could say what was left out."""


class CallLimit:
    def __init__(self) -> None:
        self._calls: deque[float] = deque(maxlen=AT_MOST)
        self._left_out = 0

    def admits(self, what: str, now: float) -> bool:
        if what not in ALWAYS and len(self._calls) == AT_MOST and now - self._calls[0] < WITHIN_S:
            self._left_out += 1
            return False
        self._calls.append(now)
        return True

    def take_left_out(self) -> int:
        """How many calls were left out since it was asked last."""
        count, self._left_out = self._left_out, 0
        return count


_WAITING = 100
"""Events that wait for a hook; it hears of newer ones only when it has caught up."""
LAST_S = 5.0
"""When the job ends, hooks have so long together."""
FAILED = "hook_failed"

Record = dict[str, Any]


class HookTarget(Protocol):
    def call(self, record: Record) -> str | None: ...
    def close(self) -> None: ...


class Hook:
    def __init__(self, rule: HookRule, target: HookTarget, tell: Callable[[Event], None]) -> None:
        """`tell` is called by the hook's thread."""
        self.rule, self._target, self._tell = rule, target, tell
        self._waiting: queue.Queue[Record | None] = queue.Queue(_WAITING)
        self._limit = CallLimit()
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name=f"hook {rule.label}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, record: Record, now: float) -> None:
        if self._limit.admits(record["what"], now):
            try:
                self._waiting.put_nowait({**record, "left_out": self._limit.take_left_out()})
            except queue.Full:
                return  # it hangs, and this was told

    def close(self, deadline: float) -> None:
        """What waits is still delivered, until the deadline."""
        self._end(max(0.0, deadline - time.monotonic()))
        self._thread.join(max(0.0, deadline - time.monotonic()))
        self._target.close()
        while self._thread.is_alive() and not self._waiting.empty():
            with contextlib.suppress(queue.Empty):
                self._waiting.get_nowait()
        self._end(0.0)
        self._thread.join(1.0)

    def _end(self, timeout_s: float) -> None:
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=timeout_s or None, block=timeout_s > 0)

    def _run(self) -> None:
        while (record := self._waiting.get()) is not None:
            self._note(self._call(record))

    def _call(self, record: Record) -> str | None:
        try:
            return self._target.call(record)
        except Exception as error:  # the outer edge of this thread: told, and the next event is tried
            return f"{type(error).__name__}: {error}"

    def _note(self, failure: str | None) -> None:
        """Once, and again only after it had worked in between."""
        if failure is not None and not self._has_failed:
            self._tell(Event(what="hook_failed", detail={"hook": self.rule.label, "reason": failure}))
        self._has_failed = failure is not None


class EventHooks:
    def __init__(self, rules: Iterable[HookRule], *, run_dir: Path, tell: Callable[[Event], None]) -> None:
        self._run_dir = run_dir
        self._hooks = [Hook(rule, _target(rule), tell) for rule in rules]

    def start(self) -> None:
        for hook in self._hooks:
            hook.start()

    def offer(self, record: Record) -> None:
        """Offers a record to all hooks that want it, and never blocks."""
        if record["what"] == FAILED:
            return  # else a hook for it would call itself
        for hook in self._hooks:
            if (name := hook.rule.name_for(record)) is not None:
                given = {**record, "event": name, "text": _text(name, record), "run_dir": str(self._run_dir.resolve())}
                hook.offer(given, time.monotonic())

    def close(self) -> None:
        deadline = time.monotonic() + LAST_S
        for hook in self._hooks:
            hook.close(deadline)


def _target(rule: HookRule) -> HookTarget:
    return Command(rule.target) if rule.kind == ON_EVENT else Webhook(rule)


def _text(name: str, record: Record) -> str:
    """The sentence of the console where the event has one."""
    if name != record["what"]:
        return f"recovered from {record.get('cause')}: training runs in generation {record.get('generation')}"
    return BY_NAME[name].sentence(record) or f"{name} {record.get('reason', '')}".strip()
