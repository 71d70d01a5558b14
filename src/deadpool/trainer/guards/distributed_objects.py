"""Objects of torch.distributed that end with a process, or that a fault leaves unfinished.

`PendingHandles` finds handles of collectives that a step begins and does not wait for: `work = all_reduce(...,
async_op=True)`.

The next step waits for it, and a newcomer has no such handle. In the steps that are looked at, methods of process
groups pass through an Interception, and the ways to wait for a Work are replaced: a handle that the script still
holds at the boundary, and that nobody has asked, is pending. Step 0 is left out, because the results of its
collectives are recorded in the same way.

`ServedStores` finds a TCPStore of the script's own that a rank serves.

It ends with the process that serves it, and no recovery brings it back: the survivors still have their connections
to the old one, and wait in it until its timeout, again and again. torch's own groups do not need one in a protected
job.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from deadpool.backend.interception import Interception
from deadpool.backend.recorded_collectives import Key
from deadpool.trainer.guards.guard import Findings, Rule, is_due

_WORK: Any = dist.Work
_WAYS_TO_WAIT = ("wait", "synchronize", "block_current_stream", "get_future", "is_completed")


class PendingHandles:
    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._interception = Interception()
        self._originals: dict[str, Any] = {}
        self._pending: dict[int, weakref.ref[Any]] = {}  # by id of the work

    def enter_step(self, number: int) -> None:
        self._stop()
        if number > 0 and is_due(number):
            self._watch()

    def leave_step(self, number: int) -> None:
        """The script may still wait behind the block."""

    def at_boundary(self, number: int) -> None:
        if not self._originals:
            return
        pending = [each for each in self._pending.values() if each() is not None]
        self._stop()
        if pending:
            self._findings.report(
                Rule.PENDING_HANDLES,
                f"{len(pending)} handles of collectives that a step has begun are still held when it ends, and nobody "
                "has waited for them: a newcomer that redoes the next step would have none.",
                step=number,
            )

    def _watch(self) -> None:
        self._pending = {}
        for name in _WAYS_TO_WAIT:
            if name in vars(_WORK):
                self._originals[name] = vars(_WORK)[name]
                setattr(_WORK, name, self._asking(getattr(_WORK, name)))
        self._interception.begin(self._on_collective)

    def _stop(self) -> None:
        if not self._originals:
            return
        self._interception.end()
        for name, method in self._originals.items():
            setattr(_WORK, name, method)
        self._originals, self._pending = {}, {}

    def _on_collective(self, key: Key, outputs: list[torch.Tensor], call: Callable[[], Any]) -> Any:
        work = call()
        if isinstance(work, _WORK) and threading.current_thread() is threading.main_thread():
            self._pending[id(work)] = weakref.ref(work)
        return work

    def _asking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def ask(work: Any, *args: Any, **kwargs: Any) -> Any:
            self._pending.pop(id(work), None)
            return method(work, *args, **kwargs)

        return ask


_STORE: Any = dist.TCPStore
_DEFAULTS = {"world_size": None, "is_master": False}
_PLACES = ("host_name", "port", "world_size", "is_master")


class ServedStores:
    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._early: list[weakref.ref[Any]] = []  # made before the loop: a script without one is told nothing
        self._served: weakref.WeakSet[Any] = weakref.WeakSet()
        self._in_loop = False

    @property
    def is_serving(self) -> bool:
        """Whether something would be lost with this process that no other has."""
        return len(self._served) > 0

    def begin(self) -> None:
        """The script begins. What it makes from here on is its own."""
        _STORE.__init__ = self._noting(_STORE.__init__)

    def enter_loop(self) -> None:
        """Called again where a process becomes a live rank."""
        self._in_loop = True
        for store in filter(None, (each() for each in self._early)):  # one that was dropped is served no more
            self._report(store.port)
        self._early.clear()

    def _noting(self, original: Callable[..., None]) -> Callable[..., None]:
        def make(store: Any, *args: Any, **kwargs: Any) -> None:
            original(store, *args, **kwargs)
            given = {**_DEFAULTS, **dict(zip(_PLACES, args, strict=False)), **kwargs}
            if given["is_master"] and given["world_size"] != 1:
                self._note(store)

        return make

    def _note(self, store: Any) -> None:
        self._served.add(store)
        if self._in_loop:
            self._report(store.port)
        else:
            self._early.append(weakref.ref(store))

    def _report(self, port: int) -> None:
        self._findings.report(
            Rule.SERVED_STORE,
            f"This rank serves a TCPStore of the script's own at port {port}: if its node is lost, the store is gone, "
            "and every rank that uses it waits until the store's timeout.",
        )
