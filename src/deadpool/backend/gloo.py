"""Makes gloo backends on one shared device, and their stand-ins for a process that rehearses alone.

One device for all of them: whatever peers connect to is one port, and what came in through it is known to be ours.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d

# Untyped: what we need of them is missing in torch's own stubs.
FakeProcessGroup: Any = _distributed_c10d.FakeProcessGroup
ProcessGroupGloo: Any = _distributed_c10d.ProcessGroupGloo


THREADS = 2
"""Per backend, as plain torch has it: a collective that is begun in the callback of another one needs the second."""


class GlooFactory:
    """Owns the gloo device of this process."""

    def __init__(self, hostname: str) -> None:
        self._hostname = hostname
        self._device: Any = None

    def open_device(self) -> None:
        """Begins to listen; the first thing to be called, once."""
        if self._device is None:
            # Lazy connecting would open sockets in the middle of a collective, where nobody records them.
            self._device = ProcessGroupGloo.create_device(hostname=self._hostname, lazy_init=False)

    def real(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
        """Connects to all peers; blocks until they are there."""
        options = ProcessGroupGloo._Options()
        options._devices = [self._device]
        options._threads = THREADS
        options._timeout = timeout
        return ProcessGroupGloo(store, rank, size, options)

    def alone(self, timeout: timedelta) -> Any:
        """A real one without peers."""
        return self.real(dist.HashStore(), 0, 1, timeout)

    def fake(self, rank: int, size: int, timeout: timedelta) -> Any:
        """Talks to nobody: every collective completes at once."""
        options = FakeProcessGroup.Options()
        options._timeout = timeout
        return FakeProcessGroup._create_internal(rank=rank, world_size=size, options=options)

    def refusing(self) -> Any:
        """For groups that are gone: whoever still talks to one gets an error, where a fake one would go on silently."""
        options = FakeProcessGroup.Options()
        options.error_on_collective = True
        return FakeProcessGroup._create_internal(rank=0, world_size=1, options=options)
