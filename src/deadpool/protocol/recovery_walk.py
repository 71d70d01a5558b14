"""A trainer's walk from rest to Go: which order it waits for, and what each order or finished action leads to.

    RESTING  -- Arriving --> LoadEarly (once; the walk stays where it is)
    RESTING  -- Restore  --> Load -- loaded ----> Prepared to the agent
                                  \\- damaged ---> CopyLost to the agent; this walk leads nowhere
    PREPARED -- Connect  --> RebuildGroups -- connected --> Connected to the agent
    CONNECTED -- Go      --> Resume

The trainer (trainer/recovery/recovery.py) and the simulator (the lab's sim/process/seating.py) carry out the actions;
neither decides anything. Orders may come before the walk has got that far, because a newcomer receives its orders
while it still builds: the newest of each kind is kept, and counts only in its own generation. A newer fence or seat
ends the walk at any stage. The newer generation's orders may arrive while a load of the older one still runs, so the
walk keeps what it follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from deadpool.protocol.identity import NO_GENERATION, Address, Generation
from deadpool.protocol.messages import (
    Arriving,
    Connect,
    Connected,
    CopyLost,
    Go,
    Halted,
    Prepared,
    Rehearse,
    Restore,
    Seat,
    ToTrainerMessage,
)
from deadpool.protocol.trainer_core import TrainerCore

T = TypeVar("T")


class WalkStage(Enum):
    RESTING = "await_restore"
    LOADING = "loading"
    DAMAGED = "damaged"  # the copy was: only another plan helps
    PREPARED = "prepared"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadEarly:
    """The snapshot is on its way to this slot: what has arrived of it may be loaded, at the trainer's own risk."""

    arriving: Arriving


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Stand at the version of `restore`, then call `loaded` or `damaged`."""

    restore: Restore


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildGroups:
    """Build every process group anew, then call `connected`."""

    connect: Connect


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """All ranks are connected: the step after the restored version begins."""

    restore: Restore


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """A newer generation began. A trainer that was fenced rests again; a newcomer takes its newer seat."""


WalkAction = LoadEarly | Load | RebuildGroups | Resume | Abandon


class RecoveryWalk:
    def __init__(self, core: TrainerCore) -> None:
        self._core = core
        self.stage = WalkStage.RUNNING
        self.generation: Generation = NO_GENERATION
        self._seated_in: Generation = NO_GENERATION  # the generation of the newest seat
        self._orders: dict[type, Any] = {}
        self._restore: Restore | None = None  # the one that this walk follows, once it has come
        self._loads_early = False

    # --- orders ------------------------------------------------------------------------------------------------------

    def on_role(self, role: Seat | Rehearse) -> None:
        self._seated_in = role.generation if isinstance(role, Seat) else NO_GENERATION

    def on_order(self, message: ToTrainerMessage) -> None:
        self._orders[type(message)] = message

    def order(self, kind: type[T], generation: Generation) -> T | None:
        """The order of this kind and generation, if it has come."""
        message = self._orders.get(kind)
        return message if message is not None and message.generation == generation else None

    def is_superseded(self, generation: Generation) -> bool:
        """No more orders of this generation will come."""
        return self._core.aborted > generation or self._seated_in > generation

    # --- the walk ----------------------------------------------------------------------------------------------------

    def rest(self) -> Halted:
        """The step is unwound and captures are joined: the walk of the newest fence begins, with this report."""
        self.begin(self._core.aborted)
        return Halted(generation=self.generation, live=self._core.rest())

    def begin(self, generation: Generation) -> None:
        self.generation, self.stage = generation, WalkStage.RESTING
        self._restore, self._loads_early = None, False

    def advance(self) -> WalkAction | None:
        """What to do next. None: the order for it has not come yet."""
        if self.stage is not WalkStage.RUNNING and self.is_superseded(self.generation):
            return Abandon()
        match self.stage:
            case WalkStage.RESTING:
                return self._begin_load()
            case WalkStage.PREPARED:
                return self._begin_rebuild()
            case WalkStage.CONNECTED:
                return self._resume()
            case _:
                return None

    def _begin_load(self) -> WalkAction | None:
        if restore := self.order(Restore, self.generation):
            self.stage, self._restore = WalkStage.LOADING, restore
            self._core.restoring()
            return Load(restore=restore)
        arriving = self.order(Arriving, self.generation)
        if arriving is None or self._loads_early:
            return None
        self._loads_early = True
        return LoadEarly(arriving=arriving)

    def loaded(self, store: Address, agreement: str = "") -> Prepared | None:
        """The restored version is in place. None: nothing is sent, as a newer generation began meanwhile."""
        restore = self._restore
        assert self.stage is WalkStage.LOADING and restore is not None, self.stage
        self._core.restored(self.generation, restore.version, restore.schedule)
        self.stage = WalkStage.PREPARED
        if self.is_superseded(self.generation):
            return None
        return Prepared(generation=self.generation, rank=self._core.rank, store=store, agreement=agreement)

    def damaged(self, node: str = "") -> CopyLost:
        """What was loaded is not what was sealed. There will be another plan, with another source."""
        restore = self._restore
        assert self.stage is WalkStage.LOADING and restore is not None, self.stage
        self.stage = WalkStage.DAMAGED
        return CopyLost(generation=self.generation, node=node, rank=self._core.rank, version=restore.version)

    def _begin_rebuild(self) -> WalkAction | None:
        connect = self.order(Connect, self.generation)
        if connect is None:
            return None
        self.stage = WalkStage.CONNECTING
        return RebuildGroups(connect=connect)

    def connected(self) -> Connected | None:
        """Every group is rebuilt. None: nothing is sent, as a newer generation began meanwhile."""
        assert self.stage is WalkStage.CONNECTING, self.stage
        if self.is_superseded(self.generation):
            return None
        self.stage = WalkStage.CONNECTED
        return Connected(generation=self.generation, rank=self._core.rank)

    def _resume(self) -> WalkAction | None:
        if self.order(Go, self.generation) is None:
            return None
        assert self._restore is not None
        self.stage = WalkStage.RUNNING
        return Resume(restore=self._restore)
