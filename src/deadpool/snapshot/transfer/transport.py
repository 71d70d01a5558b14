"""How the bulk bytes of a copy travel: the interface that a transfer's client and server use, and its plain way.

Whoever has bytes may show a *window*, which says where they lie in its memory, and whoever wants them reads through it.
Only readers write: into their own slots, which are not sealed before the reader has verified what it read, and never
into the memory of another node. So a node that is fenced can write nowhere else, and its own fence ends its own reads.

A window is an offer. The bytes of a chunk come over the stream wherever there is none, or where it cannot be read:
`OverTcp` shows none and reads none. Offers, refusals, seals and digests always travel over the authenticated streams.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from deadpool.snapshot.arena.arena import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Where a chunk lies in the memory of the process that shows it."""

    source: bytes  # names that process: another one that takes its place has another name
    metadata: bytes  # how to reach its memory
    address: int


class Transport(ABC):
    """Any thread may call any method."""

    @property
    @abstractmethod
    def reads(self) -> bool:
        """Whether windows can be read here at present."""

    @abstractmethod
    def window(self, fd: int, offset: int, size: int) -> Window | None:
        """A window to a part of a segment; None: there is none at present."""

    @abstractmethod
    def read(self, window: Window, into: memoryview, wanted: Callable[[], bool]) -> bool:
        """Reads through a window and returns whether all bytes are there. Nothing writes to `into` any more when it
        returns. It gives up soon where nobody `wanted` it any more."""

    @abstractmethod
    def add(self, segment: Segment) -> None:
        """Makes a segment's memory known. It stays so until it is dropped."""

    @abstractmethod
    def drop(self, segment: Segment) -> None:
        """Forgets a segment, before it is closed. No transfer uses it any more, and it may not have been added."""

    @abstractmethod
    def close(self) -> None: ...


class OverTcp(Transport):
    """All bytes come over the streams."""

    @property
    def reads(self) -> bool:
        return False

    def window(self, fd: int, offset: int, size: int) -> Window | None:
        return None

    def read(self, window: Window, into: memoryview, wanted: Callable[[], bool]) -> bool:
        return False

    def add(self, segment: Segment) -> None:
        pass

    def drop(self, segment: Segment) -> None:
        pass

    def close(self) -> None:
        pass
