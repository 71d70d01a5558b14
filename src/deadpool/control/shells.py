"""What an optional feature adds to the processes around the cores: to an agent's data plane and to a coordinator.

A feature derives its part from `DataShell`, `JointShell` or `CoordinatorShell` and overrides what it has a say in; the
rest does nothing. `shell_registry.py` has an import and an entry for each feature.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from deadpool.config.job_config import JobConfig
from deadpool.errors import TransferError
from deadpool.events.event import Event
from deadpool.protocol.agent.copies.copies import Copies
from deadpool.protocol.effects import AcceptOffer, Contribute, FeatureEffect, FetchCopy, HashSlot
from deadpool.protocol.identity import Generation
from deadpool.protocol.inputs import AgentInput, FeatureInput
from deadpool.protocol.messages import Copy, Settings, SlotRef
from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import Digest
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.arena.checksums import PieceDigests
from deadpool.snapshot.transfer import JointFrames, Midway, TransferClient, TransferRefused
from deadpool.snapshot.transfer.client import Watch
from deadpool.snapshot.transfer.connection import Connection

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlaneAccess:
    """What a feature may use of the data plane."""

    deliver: Callable[[AgentInput], None]  # takes inputs for the core from any thread
    slot: Callable[[SlotRef], memoryview]
    stream: Callable[[Callable[[], None]], None]  # runs work in a thread; a fence waits until it has ended


class DataShell:
    def use(self, settings: Settings) -> None:
        """The job's settings are known from now on."""

    def perform(self, effect: FeatureEffect) -> bool:
        """Returns False for another feature's effect."""
        return False

    def load(self, fetch: FetchCopy) -> bool:
        """Loads a snapshot from outside of the job's memory. Returns False where another feature keeps it."""
        return False

    def cut(self, generation: Generation) -> None:
        """No slot is read or written for an older generation after this, once the work that streams has ended."""

    def close(self) -> None:
        """The agent ends."""


class DataShells:
    """The parts of all features, as one."""

    def __init__(self, shells: Sequence[DataShell]) -> None:
        self._shells = tuple(shells)

    def use(self, settings: Settings) -> None:
        for shell in self._shells:
            shell.use(settings)

    def perform(self, effect: FeatureEffect) -> None:
        """An effect that nobody performs would be waited for without end."""
        done = [shell for shell in self._shells if shell.perform(effect)]
        assert len(done) == 1, effect

    def load(self, fetch: FetchCopy) -> None:
        assert any(shell.load(fetch) for shell in self._shells), fetch

    def cut(self, generation: Generation) -> None:
        for shell in self._shells:
            shell.cut(generation)

    def close(self) -> None:
        for shell in self._shells:
            shell.close()


class OnLoop(Protocol):
    """Has the event loop answer a question of another thread."""

    def __call__(self, question: Callable[[], T]) -> T: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JointAccess:
    """What the feature that makes joint copies may use of the data plane."""

    client: TransferClient
    segment: Callable[[int], Segment]  # of the arena, by its number
    deliver: Callable[[AgentInput], None]  # takes inputs for the core from any thread
    hashers: ThreadPoolExecutor
    note: Callable[[Event], None]  # takes events on the event loop
    offer: Callable[[Copy, Generation, RankGroup], AcceptOffer | TransferRefused]  # waits for the core's answer
    copies: Copies  # of the core, for the event loop only
    on_loop: OnLoop


class JointShell:
    """The data plane's part in joint copies. The core decides which slot one lies in and when it is whole."""

    def __init__(self, access: JointAccess) -> None:
        pass

    def frames(self, connection: Connection) -> JointFrames:
        """Returns what serves joint copies on a connection."""
        return JointFrames(connection)

    def begin(self, accepted: AcceptOffer) -> None:
        """The slot is for a new joint copy from now on. On the event loop, before anything comes into it."""

    def hash(self, effect: HashSlot) -> Digest | None:
        """Hashes a slot. None: it has a snapshot of one rank, which is hashed as all are."""
        return None

    def on_hashed(self, slot: SlotRef, digests: PieceDigests) -> None:
        """A snapshot of this node was hashed."""

    def send(self, effect: Contribute, midway: Midway | None) -> int:
        """Sends what a member of the group needs of a snapshot for its joint copy. Returns how many bytes that were."""
        raise TransferError("what makes joint copies is not installed on this node")

    def rebuild(self, effect: FetchCopy, watch: Watch, failed: Callable[[str, str], None]) -> None:
        """Writes the record and the unique part of a lost snapshot into its slot; TransferError if they do not follow
        from what is left. `failed` is told of nodes that were of no use, and why."""
        raise TransferError("what rebuilds from joint copies is not installed on this node")

    def forget(self, segment: int) -> None:
        """The memory of a segment is about to be freed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorAccess:
    """What a feature knows of the coordinator's process."""

    config: JobConfig
    secret: bytes  # of the job
    founds: bool  # this process begins the job


class CoordinatorShell:
    def settings(self) -> Mapping[str, Any]:
        """The feature's fields of the job's settings."""
        return {}

    def asked_by(self) -> Mapping[signal.Signals, FeatureInput]:
        """What a signal to the coordinator's process asks for."""
        return {}

    def begin(self, note: Callable[[Event], None]) -> Sequence[FeatureInput]:
        """The job is about to begin. Called in a thread."""
        return ()

    def lead(self) -> FeatureInput | Event | None:
        """This process has become the coordinator. Called in a thread."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureShell:
    data: Callable[[DataPlaneAccess], DataShell] | None = None
    joint: Callable[[JointAccess], JointShell] | None = None
    coordinator: Callable[[CoordinatorAccess], CoordinatorShell] | None = None
