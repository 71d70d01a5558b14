"""What a recovery does where no version in memory serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Copy, Fetch


class KeptVersion(Protocol):
    """A version that is kept outside of the job's memory. `copies` has every rank's own seal, in the order of ranks."""

    @property
    def name(self) -> str: ...

    @property
    def number(self) -> int: ...

    @property
    def copies(self) -> tuple[Copy, ...]: ...


def fetch_kept(kept: KeptVersion, rank: int, version: Version) -> Fetch:
    """`version` is what the kept one is called in this generation."""
    copy = kept.copies[rank]
    return Fetch(copy=replace(copy, seal=replace(copy.seal, version=version)), groups=(), fallback=kept.name)


class Fallback:
    """No feature has one: what no node has is lost, and a job ends with its last step."""

    read_s: float = 0.0
    """How much longer nodes may take to prepare where every rank's state comes from here."""

    @property
    def newest(self) -> KeptVersion | None:
        """The version that a plan goes back to if nodes have none. It is older than what they had."""
        return None

    @property
    def recordings(self) -> Sequence[bytes]:
        """Returns, by rank, what the processes of a job that begins with that version rehearse with."""
        return ()

    def on_unread(self, name: str, reason: str) -> str | None:
        """A rank's state could not be read from that version. Returns why the job has to end; None: it is tried again,
        and perhaps another version is the newest by now."""
        return reason

    def keep_last(self) -> None:
        """All ranks have ended well: what is committed by now may be kept."""

    @property
    def is_busy(self) -> bool:
        """The job does not end before this is over."""
        return False

    def advice(self) -> str:
        """From what people may start the job again, when all is lost."""
        return "restart from your last checkpoint"
