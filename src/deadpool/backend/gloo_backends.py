"""The groups of gloo: how their backends are made, and how the loss of a peer shows.

All real backends share one device, so peers connect to a single port, and every connection that came in through that
port is known to belong to a process group. Others replace them in a rehearsal or a forgotten group.

`PeerLoss` tells whether a peer was lost: a connection has closed, and no peer had said that it destroys the group. A
process that destroys a group counts that in the store, under the group's name, before a connection of it closes. A
connection does not tell which rank it leads to. So a connection that breaks between a peer's announcement and the end
of that peer's own connection is taken for the announced one. That hides the loss of a peer only while the default group
itself is being destroyed, and only until the agents notice the loss. Main thread only.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from deadpool.backend import torch_versions
from deadpool.backend.store import StoreConnection
from deadpool.backend.supervisor import Supervisor
from deadpool.backend.torch_versions import FakeProcessGroup, ProcessGroupGloo
from deadpool.errors import GroupError

THREADS = 2
"""Per backend, as in plain torch: a collective that is started in the callback of another one needs the second."""


class GlooFactory:
    """Owns the gloo device of this process."""

    def __init__(self, hostname: str) -> None:
        self._hostname = hostname
        self._device: Any = None

    def open_device(self) -> None:
        """Starts to listen. Has to be called before anything else here; a second call does nothing."""
        if self._device is None:
            # Lazy connecting would open sockets in the middle of a collective, where they could not be registered.
            self._device = ProcessGroupGloo.create_device(hostname=self._hostname, lazy_init=False)

    def connect(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
        """Returns a backend that is connected to all peers; blocks until they have come."""
        return ProcessGroupGloo(store, rank, size, self._options(timeout))

    def make_unconnected(self, rank: int, size: int, timeout: timedelta) -> Any:
        """Returns a real backend without peers, for a rehearsal: it lies beneath a fake one and is never used.

        Where a group takes its rank and size from its backend, this one has them. Elsewhere it is the only member of
        its own.
        """
        options = self._options(timeout)
        if not torch_versions.gloo_can_stay_unconnected():
            return ProcessGroupGloo(dist.HashStore(), 0, 1, options)
        options.enable_reconfigure = True
        return ProcessGroupGloo(dist.HashStore(), rank, size, options)

    def _options(self, timeout: timedelta) -> Any:
        options = ProcessGroupGloo._Options()
        options._devices = [self._device]
        options._threads = THREADS
        options._timeout = timeout
        return options

    def make_fake(self, rank: int, size: int, timeout: timedelta) -> Any:
        """Returns a backend that communicates with no peer: every collective completes at once."""
        options = FakeProcessGroup.Options()
        options._timeout = timeout
        return FakeProcessGroup._create_internal(rank=rank, world_size=size, options=options)

    def make_refusing(self, rank: int = 0, size: int = 1) -> Any:
        """Returns a backend for a forgotten group: every collective raises, where a fake one would pass silently."""
        options = FakeProcessGroup.Options()
        options.error_on_collective = True
        return FakeProcessGroup._create_internal(rank=rank, world_size=size, options=options)


class PeerLoss:
    def __init__(self, supervisor: Supervisor, connection: StoreConnection) -> None:
        self._supervisor, self._connection = supervisor, connection
        self._was_lost = False  # a loss that was seen when a group was destroyed
        self._excused: Counter[str] = Counter()  # by group: connections that peers have closed on purpose

    def reset(self) -> None:
        """New groups are made in a new store: announcements about groups of the same names do not concern them."""
        self._was_lost, self._excused = False, Counter()

    def has_happened(self) -> bool:
        """Whether a connection has closed that no peer closed on purpose. No collective over it can have succeeded
        since. Always False while groups are aborted, so the caller checks the abort flag afterwards."""
        return self._was_lost or any(
            not self._is_announced(*each) for each in self._supervisor.missing_connections().items()
        )

    def announce(self, groups: tuple[str, ...]) -> None:
        """This process is about to destroy these groups: without the announcement its peers would take it for lost.

        A loss that was seen before is remembered, because a script may destroy a group after it failed.
        """
        store = self._connection.current
        if store is None or self._supervisor.is_aborted:
            return
        self._was_lost = self.has_happened()
        for each in groups:
            with contextlib.suppress(GroupError, RuntimeError):  # peers that miss the announcement wait for a fence
                store.add(_key(each), 1)
            self._supervisor.forget(each)

    def _is_announced(self, groups: tuple[str, ...], count: int) -> bool:
        """Whether peers have announced that they destroy as many of these groups as connections are missing."""
        store = self._connection.current
        if store is None:
            return False
        try:
            announced = {each: store.add(_key(each), 0) - self._excused[each] for each in groups}
        except (GroupError, RuntimeError):
            return False
        if sum(announced.values()) < count:
            return False
        for each, ended in announced.items():
            taken = min(ended, count)
            count -= taken
            self._excused[each] += taken
            self._supervisor.excuse_missing(each, taken)
        return True


def _key(group: str) -> str:
    return f"closed/{group}"
