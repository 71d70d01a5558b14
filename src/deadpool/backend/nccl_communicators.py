"""The NCCL backends of this process: how each was made, which may have communicators, and which were used.

A rebuild needs the first and the last of these, an abort the second. abort() may be called from any thread, everything
else from the main thread.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from deadpool.backend import nccl, world
from deadpool.backend.supervisor import Supervisor


class NcclCommunicators:
    """`on_torn_down` gets the seconds that an abort took; `on_hang` is called if an abort never returns."""

    def __init__(
        self, supervisor: Supervisor, on_torn_down: Callable[[float], None], on_hang: Callable[[], None]
    ) -> None:
        self._supervisor, self._on_torn_down, self._on_hang = supervisor, on_torn_down, on_hang
        self._lock = threading.Lock()
        self._abortable: list[Any] = []  # backends that may have communicators
        self._options: dict[str, Any] = {}  # by group, as it was made
        self.used: set[str] = set()  # groups that have run a collective over NCCL

    @property
    def exist(self) -> bool:
        """Whether any group of this process uses NCCL."""
        return bool(self._options)

    def make(self, what: str, store: dist.Store, rank: int, size: int, options: Any) -> Any:
        """The backend is registered before it can connect, so that no abort misses it."""

        def make() -> Any:
            backend = nccl.make(store, rank, size, options)
            with self._lock:
                self._abortable.append(backend)
            return backend

        return self._supervisor.run(what, make, keep=False)

    def remake(self, group: world.JoinedGroup, store: dist.Store) -> Any:
        options = nccl.without_split(self._options[group.name])
        return self.make(f"rebuilding group {group.name}", store, group.rank, group.size, options)

    def register(self, group: world.JoinedGroup, *, detached: bool) -> None:
        """Keeps the group's options, to make it anew, and its backend, to abort it. Does nothing for a fake group."""
        if "nccl" not in group.transports or world.is_faked(group.process_group):
            return
        backend = group.backend("nccl")
        self._options[group.name] = backend.options
        with self._lock:
            if not detached and all(backend is not known for known in self._abortable):
                self._abortable.append(backend)

    def register_split(self, group: world.JoinedGroup, origin: world.JoinedGroup, *, detached: bool) -> None:
        """In a rehearsal the new group is fake and has no options of its own: it gets those of its origin."""
        self.register(group, detached=detached)
        if "nccl" in group.transports:
            self._options.setdefault(group.name, copy.deepcopy(self._options[origin.name]))

    def abort(self) -> None:
        """Returns at once: the communicators are torn down in threads of their own."""
        with self._lock:
            backends, self._abortable = self._abortable, []
        if backends:
            nccl.Teardown(backends, self._on_torn_down, self._on_hang).start()

    def note_use(self) -> None:
        if self.exist:
            unknown = [group for group in world.joined_groups() if group.name not in self.used]
            over_nccl = [group for group in unknown if "nccl" in group.transports]
            self.used |= {group.name for group in over_nccl if nccl.was_used(group.backend("nccl"))}

    def connect_used(self, groups: Sequence[world.JoinedGroup], wait_s: float) -> None:
        """Connects the groups that had been used before the rebuild, so that the first step need not do it and the
        loss of a peer ends it."""
        backends = [group.backend("nccl") for group in groups if group.name in self.used]
        if backends:
            device = torch.cuda.current_device()
            self._supervisor.run("connecting groups", lambda: nccl.connect(backends, device), keep=False, wait_s=wait_s)
