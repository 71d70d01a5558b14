"""How a lost rank's snapshot comes into a slot of this node: from nodes that have it, or from joint copies.

Runs in threads of the data plane. What became of it is an input for the core.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable
from typing import cast

from deadpool.control.shells import JointShell
from deadpool.errors import CopyDamaged, DeadPoolError, TransferError
from deadpool.events.event import Event
from deadpool.protocol.effects import FetchCopy
from deadpool.protocol.inputs import AgentInput, Fetched, FetchFailed, SourceDamaged
from deadpool.protocol.messages import SlotRef, Source
from deadpool.protocol.seal import Region
from deadpool.snapshot.arena.slot import Arrived, Progress
from deadpool.snapshot.transfer import PullRequest, TransferClient
from deadpool.snapshot.transfer.client import Watch


class Fetches:
    def __init__(
        self,
        client: TransferClient,
        joint: JointShell,
        *,
        slot: Callable[[SlotRef], memoryview],
        deliver: Callable[[AgentInput], None],
        note: Callable[[Event], None],
    ) -> None:
        """`deliver` takes inputs for the core and `note` takes events, both from any thread; `slot` gives a slot of the
        arena."""
        self._client, self._joint = client, joint
        self._slot, self._deliver, self._note = slot, deliver, note
        self._attempts = itertools.count(1)  # counts over all fetches, so that no number is used twice

    def fetch(self, effect: FetchCopy) -> None:
        try:
            if effect.fetch.rebuild is not None:
                self._rebuild(effect)
            for group in effect.fetch.groups:
                self._fetch_part(effect, group)
        except DeadPoolError as error:
            self._deliver(FetchFailed(rank=effect.rank, slot=effect.slot, reason=str(error)))
            return
        self._deliver(Fetched(rank=effect.rank, slot=effect.slot, copy=effect.fetch.copy))

    def _fetch_part(self, effect: FetchCopy, sources: tuple[Source, ...]) -> None:
        """Takes the first source whose bytes match the digest of the lost rank."""
        failures = []
        for source in sources:
            try:
                self._pull(effect, source, next(self._attempts))
                return
            except DeadPoolError as error:
                failures.append(f"{source.node}: {error}")
                self._note_failed(effect, source.node, str(error))
                if isinstance(error, CopyDamaged):
                    version = effect.fetch.copy.seal.version
                    self._deliver(SourceDamaged(node=source.node, rank=source.rank, version=version))
        raise TransferError("; ".join(failures) or "no source is left")

    def _pull(self, effect: FetchCopy, source: Source, attempt: int) -> None:
        """The rank's trainer sees how far it is, and may load what has arrived before it is verified."""
        copy, slot = effect.fetch.copy, self._slot(effect.slot)
        request = PullRequest(
            address=(source.address.host, source.address.port),
            generation=effect.generation,
            rank=source.rank,
            version=copy.seal.version,
            regions=cast(tuple[Region, ...], source.regions),
            digest=copy.seal.digest,
            geometry=copy.geometry,
            into=slot,
        )
        self._client.pull(request, self._watch(slot, attempt))

    def _rebuild(self, effect: FetchCopy) -> None:
        watch = self._watch(self._slot(effect.slot), next(self._attempts))
        self._joint.rebuild(effect, watch, functools.partial(self._note_failed, effect))

    def _watch(self, slot: memoryview, attempt: int) -> Watch:
        progress = Progress(slot)
        return lambda name, leading: progress.publish(name, Arrived(attempt, leading))

    def _note_failed(self, effect: FetchCopy, source: str, reason: str) -> None:
        event = Event(
            what="source_failed",
            generation=str(effect.generation),
            rank=effect.rank,
            step=effect.fetch.copy.seal.version.number,
            t=time.time(),
            detail={"source": source, "reason": reason},
        )
        self._note(event)
