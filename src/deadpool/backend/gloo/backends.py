"""Makes gloo backends on one shared device, and the backends that replace them in a rehearsal or a forgotten group.

All real backends share one device, so peers connect to a single port, and every connection that came in through that
port is known to belong to a process group.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from deadpool.backend import torch_versions
from deadpool.backend.torch_versions import FakeProcessGroup, ProcessGroupGloo

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
