"""The ways that bytes take in tests of the data plane: one transport for those that send and fetch, one for servers.

Both know the memory of all nodes of a test, since a test's nodes share one process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from waiting import wait_until

from deadpool.host.rdma import INSTALL, nixl_build
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.transfer.nixl_transport import NixlTransport
from deadpool.snapshot.transfer.transport import OverTcp, Transport, Window

BY_TCP, BY_NIXL = "tcp", "nixl"
NEEDS_NIXL = pytest.mark.skipif(nixl_build() is None, reason=f"nixl is missing: {INSTALL}")
WAYS = (BY_TCP, pytest.param(BY_NIXL, marks=NEEDS_NIXL))
PATIENCE_S = 10.0
"""A read of a chunk ends sooner on a machine on which these tests end at all."""


class CountedNixl(NixlTransport):
    """Knows what was read through windows, and calls `before_read` before it reads."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        super().__init__(self.notes.append, PATIENCE_S, longest_pause_s=0.1)
        self.bytes_read = 0
        self.before_read: Callable[[], None] = lambda: None

    def read(self, window: Window, into: memoryview, wanted: Callable[[], bool]) -> bool:
        self.before_read()
        done = super().read(window, into, wanted)
        self.bytes_read += len(into) if done else 0
        return done


@dataclass
class Transports:
    client: Transport = field(default_factory=OverTcp)
    server: Transport = field(default_factory=OverTcp)

    @property
    def both(self) -> tuple[Transport, Transport]:
        return self.client, self.server

    def add(self, segment: Segment) -> None:
        for each in self.both:
            each.add(segment)
        self.wait()

    def wait(self) -> None:
        for each in self.both:
            if isinstance(each, NixlTransport):
                wait_until(lambda each=each: each.reads, "the NIXL process")

    def drop(self, segment: Segment) -> None:
        for each in self.both:
            each.drop(segment)


@contextlib.contextmanager
def opened(way: str) -> Iterator[Transports]:
    if way == BY_TCP:
        yield Transports()
        return
    with contextlib.ExitStack() as stack:
        pair = [CountedNixl() for _ in range(2)]
        for each in pair:
            each.start()
            stack.callback(each.close)
        transports = Transports(*pair)
        transports.wait()
        yield transports
