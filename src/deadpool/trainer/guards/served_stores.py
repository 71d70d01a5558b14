"""Finds a TCPStore of the script's own that a rank serves.

It ends with the process that serves it, and no recovery brings it back: the survivors still have their connections to
the old one, and wait in it until its timeout, again and again. torch's own groups do not need one in a protected job.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from deadpool.trainer.guards.findings import Findings
from deadpool.trainer.guards.rules import Rule

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
