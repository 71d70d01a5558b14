"""The data plane between machines: pushes to holders and pulls by newcomers, each of one generation, each cuttable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from deadpool.protocol.effects import (
    FetchCopy,
    Fetched,
    FetchFailed,
    Offered,
    PushCopy,
    Pushed,
    PushFailed,
    Received,
    ReceiveFailed,
    StreamsCut,
)
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import Copy, SlotRef, Source
from deadpool.sim.arena import Content

if TYPE_CHECKING:
    from deadpool.sim.machine import Machine
    from deadpool.sim.world import World


@dataclass(slots=True, eq=False)
class Stream:
    """From `source` to `target`. A fetch has only a target: it goes from source to source."""

    effect: PushCopy | FetchCopy
    generation: Generation
    source: Machine | None
    target: Machine | None
    slot: SlotRef | None = None  # written at the target
    offer: int = 0
    open: bool = True


class Streams:
    def __init__(self, world: World) -> None:
        self._world = world
        self._offers: dict[int, Stream] = {}

    # --- pushes ------------------------------------------------------------------------------------------------------

    def push(self, source: Machine, effect: PushCopy) -> None:
        stream = Stream(effect, effect.generation, source, self._world.machines.get(effect.holder.node))
        source.streams.append(stream)
        self._world.after(self._world.latency_s(), lambda: self._knock(stream))

    def _knock(self, stream: Stream) -> None:
        target = stream.target
        if not stream.open:
            return
        flaky = not self._world.calm and self._world.rng.random() < self._world.options.push_failure
        if target is None or not target.alive or target.doors_closed > stream.generation or flaky:
            self._push_failed(stream, "not let in")
            return
        assert isinstance(stream.effect, PushCopy)
        target.streams.append(stream)
        stream.offer = self._world.next_number()
        self._offers[stream.offer] = stream
        copy = stream.effect.copy
        offered = replace(copy, seal=replace(copy.seal, full=stream.effect.full), peers=())
        target.feed(Offered(offer=stream.offer, generation=stream.generation, copy=offered))

    def refused(self, offer: int, reason: str) -> None:
        stream = self._offers.pop(offer)
        if stream.open:
            self._push_failed(stream, f"refused: {reason}")

    def accepted(self, offer: int, slot: SlotRef) -> None:
        stream = self._offers.pop(offer)
        assert stream.target is not None
        if not stream.open:
            failed = ReceiveFailed(slot=slot, reason="the sender has gone")
            self._tell_unless_cut(stream.target, stream.generation, failed)
            return
        stream.slot = slot
        stream.target.arena.begin_write(slot, stream)
        self._world.after(self._push_s(), lambda: self._arrived(stream))

    def _push_s(self) -> float:
        """Now and then a stream hangs for long."""
        hangs = not self._world.calm and self._world.rng.random() < 0.04
        return self._world.push_s + (4.0 if hangs else 0.0)

    def _arrived(self, stream: Stream) -> None:
        if not stream.open or stream.source is None or stream.target is None or stream.slot is None:
            return
        effect = stream.effect
        assert isinstance(effect, PushCopy)
        content = stream.source.arena.contents.get(effect.slot)
        assert content is not None and content.version == effect.copy.seal.version, "a slot was overwritten while read"
        kept = content if effect.full else replace(content, replica=None)
        stream.target.arena.end_write(stream.slot, stream, kept)
        self._close(stream)
        seal = replace(effect.copy.seal, full=effect.full)
        self._received(stream.target, stream.slot, replace(effect.copy, seal=seal, peers=()))
        pushed = Pushed(rank=seal.rank, version=seal.version, node=stream.target.name)
        self._tell_unless_cut(stream.source, stream.generation, pushed)

    def _received(self, target: Machine, slot: SlotRef, copy: Copy) -> None:
        target.feed(Received(slot=slot, copy=copy, bytes_received=1))
        seal = copy.seal
        shelf = target.agent.store.held[seal.rank]
        if (found := shelf.find(seal.version)) is not None and found.ref == slot:
            self._world.checkers.floor_first(target, seal.rank, seal.version)
            target.arena.seal(slot, seal.rank, seal.version)

    def _push_failed(self, stream: Stream, reason: str) -> None:
        effect = stream.effect
        assert isinstance(effect, PushCopy) and stream.source is not None
        self._close(stream)
        seal = effect.copy.seal
        failed = PushFailed(rank=seal.rank, version=seal.version, node=effect.holder.node, reason=reason)
        self._tell_unless_cut(stream.source, stream.generation, failed)

    # --- fetches -----------------------------------------------------------------------------------------------------

    def fetch(self, target: Machine, effect: FetchCopy) -> None:
        stream = Stream(effect, effect.generation, None, target, effect.slot)
        target.streams.append(stream)
        target.arena.begin_write(effect.slot, stream)
        parts = [list(group) for group in effect.fetch.groups]
        self._fetch_part(stream, effect, parts, [])

    def _fetch_part(self, stream: Stream, effect: FetchCopy, parts: list[list[Source]], got: list[Content]) -> None:
        """Group by group, source by source."""
        target = stream.target
        assert target is not None
        if not stream.open:
            return
        if not parts:
            self._fetched(target, stream, effect, got)
        elif not parts[0]:
            target.arena.end_write(effect.slot, stream, None)
            self._close(stream)
            self._tell_unless_cut(
                target,
                stream.generation,
                FetchFailed(rank=effect.rank, slot=effect.slot, reason="no source is left"),
            )
        else:
            source = parts[0].pop(0)
            self._world.after(self._world.push_s, lambda: self._fetch_read(stream, effect, parts, got, source))

    def _fetch_read(
        self, stream: Stream, effect: FetchCopy, parts: list[list[Source]], got: list[Content], source: Source
    ) -> None:
        content = self._read(source, effect.fetch.copy.seal.version, stream.generation)
        wanted = effect.fetch.copy.seal.digest
        if content is None or not _matches(content, source, wanted.unique, wanted.replica):
            self._fetch_part(stream, effect, parts, got)
        else:
            self._fetch_part(stream, effect, parts[1:], [*got, content])

    def _read(self, source: Source, version: Version, generation: Generation) -> Content | None:
        machine = self._world.machines.get(source.node)
        if machine is None or not machine.alive or machine.doors_closed > generation:
            return None
        store = machine.agent.store
        shelves = (store.own.get(source.rank), store.held.get(source.rank))
        slot = next((found for shelf in shelves if shelf and (found := shelf.find(version))), None)
        return machine.arena.contents.get(slot.ref) if slot else None

    def _fetched(self, target: Machine, stream: Stream, effect: FetchCopy, got: list[Content]) -> None:
        copy = effect.fetch.copy
        content = Content(copy.seal.rank, copy.seal.version, got[0].unique, got[-1].replica)
        target.arena.end_write(effect.slot, stream, content)
        self._close(stream)
        target.feed(Fetched(rank=effect.rank, slot=effect.slot, copy=copy))

    # --- ends --------------------------------------------------------------------------------------------------------

    def cut(self, machine: Machine, generation: Generation) -> None:
        """The door closes at once; streams that are inside end a little later, and only then is it said."""
        machine.doors_closed = generation
        self._world.after(0.5, lambda: self._cut(machine, generation))

    def _cut(self, machine: Machine, generation: Generation) -> None:
        for stream in [stream for stream in machine.streams if stream.generation < generation]:
            self._break(stream, machine)
        machine.streams_cut = generation
        machine.feed(StreamsCut(generation=generation))

    def machine_died(self, machine: Machine) -> None:
        for stream in list(machine.streams):
            self._break(stream, machine)

    def _break(self, stream: Stream, by: Machine) -> None:
        """The other end hears of it, unless its own streams have been cut by then."""
        if not stream.open:
            return
        self._close(stream)
        if stream.target is not None and stream.slot is not None:
            stream.target.arena.end_write(stream.slot, stream, None)
            if stream.target is not by:
                failed = ReceiveFailed(slot=stream.slot, reason="the sender has gone")
                self._tell_unless_cut(stream.target, stream.generation, failed)
        if stream.source is not None and stream.source is not by:
            self._push_failed(stream, "the holder has gone")

    def _close(self, stream: Stream) -> None:
        stream.open = False
        for machine in (stream.source, stream.target):
            if machine is not None and stream in machine.streams:
                machine.streams.remove(stream)

    def _tell_unless_cut(self, machine: Machine, generation: Generation, input: Any) -> None:
        """News of a stream never comes after StreamsCut has said that there are no such streams."""

        def tell() -> None:
            if machine.streams_cut <= generation:
                machine.feed(input)

        self._world.after(self._world.latency_s(), tell)


def _matches(content: Content, source: Source, unique: int, replica: int) -> bool:
    same_unique = "unique" not in source.regions or content.unique == unique
    return same_unique and ("replica" not in source.regions or content.replica == replica)
