"""The data plane between machines: pushes to holders and pulls by newcomers. Each belongs to one generation, whose
fence cuts it.

Bytes are verified where they arrive, against the seal that came before them. Where nothing gets through, or the other
end does not run, a stream stands still until it continues or its deadline is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import structs

from deadpool.protocol.causes import Refusal
from deadpool.protocol.effects import AcceptOffer, Contribute, FetchCopy, Push
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.inputs import (
    Fetched,
    FetchFailed,
    Offered,
    Pushed,
    PushFailed,
    Received,
    ReceiveFailed,
    SourceDamaged,
    StreamsCut,
)
from deadpool.protocol.messages import Copy, SlotRef, Source
from deadpool.protocol.seal import DAMAGED, Digest
from deadpool_lab.sim.arena import Content, ParityContent, decode, is_as_sealed, read_blocks

if TYPE_CHECKING:
    from deadpool_lab.sim.machine import Machine
    from deadpool_lab.sim.world import World

STALLED_S = 4.0
"""The longest time for which a stream stands still."""
IN_FLIGHT = 0.3
"""Share of streams whose last bytes are on their way when their sender dies."""
LATE_S = 20.0
"""The longest time from the connection of a late stream to its offer."""


@dataclass(slots=True, eq=False)
class CopyStream:
    """A stream from `source` to `target`. A fetch has only a target: it tries one source after the other."""

    effect: Push | FetchCopy
    generation: Generation
    source: Machine | None
    target: Machine | None
    slot: SlotRef | None = None  # written at the target
    offer: int = 0
    open: bool = True
    copy: Copy | None = None  # as the holder will store it
    content: Content | None = None  # of a sender that died while its last bytes were on their way


class CopyStreams:
    def __init__(self, world: World) -> None:
        self._world = world
        self._offers: dict[int, CopyStream] = {}

    # --- pushes ------------------------------------------------------------------------------------------------------

    def push(self, source: Machine, effect: Push) -> None:
        world = self._world
        stream = CopyStream(effect, effect.generation, source, world.incarnations.get(effect.holder.address.host))
        source.streams.append(stream)
        late = not world.calm and world.rng.random() < world.options.late
        if late:
            world.heal_at_peace(partial(self._offer, stream))
        world.after(LATE_S if late else world.latency_s(), partial(self._offer, stream))

    def _offer(self, stream: CopyStream) -> None:
        target, world = stream.target, self._world
        if not stream.open or stream.offer:
            return
        if self._stands_still(stream, stream.source, target, partial(self._offer, stream)):
            return
        flaky = not world.calm and world.rng.random() < world.options.push_failure
        if target is None or not target.alive or target.oldest_admitted > stream.generation or flaky:
            self._push_failed(stream, "not let in")
            return
        effect = stream.effect
        assert isinstance(effect, Push)
        target.streams.append(stream)
        stream.offer = world.next_number()
        self._offers[stream.offer] = stream
        copy = effect.copy
        group = effect.group if isinstance(effect, Contribute) else None
        geometry = copy.geometry if effect.full or group is None else copy.geometry.without_replica()
        stream.copy = Copy(seal=structs.replace(copy.seal, full=effect.full), geometry=geometry)
        offered = Offered(offer=stream.offer, generation=stream.generation, copy=stream.copy, group=group)
        target.feed(offered)

    def on_refused(self, offer: int, refusal: Refusal) -> None:
        stream = self._offers.pop(offer)
        if stream.open:
            self._push_failed(stream, f"refused: {refusal.value}", refusal)

    def on_accepted(self, accepted: AcceptOffer) -> None:
        stream, slot, parity = self._offers.pop(accepted.offer), accepted.slot, accepted.joint
        assert stream.target is not None
        arena = stream.target.arena
        if parity is not None and stream.copy is not None:
            version = stream.copy.seal.version
            arena.begin_fold(slot, stream, ParityContent(parity.group, parity.member, version), fresh=accepted.fresh)
        if not stream.open:
            arena.end_fold(slot, stream, None)
            self._notify_unless_cut(stream.target, stream.generation, _failed(stream, slot, "the sender has gone"))
            return
        stream.slot = slot
        if parity is None:
            arena.begin_write(slot, stream)
        self._world.after(self._push_s(), partial(self._arrived, stream))

    def _push_s(self) -> float:
        """A few streams hang for several seconds."""
        hangs = not self._world.calm and self._world.rng.random() < 0.04
        return self._world.push_s + (4.0 if hangs else 0.0)

    def _arrived(self, stream: CopyStream) -> None:
        target, effect, slot, copy = stream.target, stream.effect, stream.slot, stream.copy
        if not stream.open or target is None or slot is None or copy is None:
            return
        if stream.content is None and self._stands_still(stream, stream.source, target, partial(self._arrived, stream)):
            return
        assert isinstance(effect, Push)
        content = self._sent(stream, effect)
        if content.digest() != copy.seal.digest:
            self._fail_both(stream, DAMAGED, Refusal.DAMAGED)
            return
        self._end_write(stream, slot, content if effect.full else replace(content, replica=None))
        self._close(stream)
        if not isinstance(effect, Contribute):
            self._received(target, slot, copy)
        else:
            target.feed(Received(slot=slot, copy=copy, bytes_received=1))
        if stream.source is not None:
            seconds = self._world.push_s
            pushed = Pushed(rank=copy.seal.rank, version=copy.seal.version, node=target.name, seconds=seconds)
            self._notify_unless_cut(stream.source, stream.generation, pushed)

    def _sent(self, stream: CopyStream, effect: Push) -> Content:
        if stream.content is not None:
            return stream.content
        assert stream.source is not None
        content = stream.source.arena.snapshot(effect.slot)
        assert content is not None and content.version == effect.copy.seal.version, "a slot was overwritten while read"
        return content

    def _received(self, target: Machine, slot: SlotRef, copy: Copy) -> None:
        target.feed_then(
            Received(slot=slot, copy=copy, bytes_received=1), partial(self._seal_if_stored, target, slot, copy)
        )

    def _seal_if_stored(self, target: Machine, slot: SlotRef, copy: Copy) -> None:
        seal = copy.seal
        rank_slots = target.agent.copies.held[seal.rank]
        if (found := rank_slots.find(seal.version)) is not None and found.ref == slot:
            self._world.checkers.copies.check_floor_first(target, seal.rank, seal.version)
            target.arena.seal(slot, seal.rank, seal.version)

    def _push_failed(self, stream: CopyStream, reason: str, refusal: Refusal | None = None) -> None:
        effect = stream.effect
        assert isinstance(effect, Push)
        self._close(stream)
        if stream.source is not None:
            seal = effect.copy.seal
            node = effect.holder.node
            failed = PushFailed(rank=seal.rank, version=seal.version, node=node, refusal=refusal, reason=reason)
            self._notify_unless_cut(stream.source, stream.generation, failed)

    # --- fetches -----------------------------------------------------------------------------------------------------

    def fetch(self, target: Machine, effect: FetchCopy) -> None:
        stream = CopyStream(effect, effect.generation, None, target, effect.slot)
        target.streams.append(stream)
        target.arena.begin_write(effect.slot, stream)
        parts = [list(group) for group in effect.fetch.groups]
        if effect.fetch.rebuild is None:
            self._fetch_part(stream, effect, parts, [])
        else:
            self._world.after(2 * self._world.push_s, partial(self._rebuild, stream, effect, parts))

    def _rebuild(self, stream: CopyStream, effect: FetchCopy, parts: list[list[Source]]) -> None:
        """Reads what is left of the group and decodes it. Damaged blocks are reported, and others are used."""
        target, version, how = stream.target, effect.fetch.copy.seal.version, effect.fetch.rebuild
        if not stream.open or target is None or how is None:
            return
        blocks = read_blocks(self._world, target, effect, stream.generation)
        for block, parity in blocks.damaged:
            source, group = block.source, how.group if parity else None
            damaged = SourceDamaged(node=source.node, rank=source.rank, version=version, group=group)
            self._report(target, stream.generation, damaged)
        content = decode(effect, blocks)
        if content is None or not is_as_sealed(content.digest(), effect.fetch.copy.seal.digest):
            self._fetch_part(stream, effect, [[]], [])
        else:
            self._fetch_part(stream, effect, parts, [content])

    def _fetch_part(self, stream: CopyStream, effect: FetchCopy, parts: list[list[Source]], got: list[Content]) -> None:
        """Reads one group of regions after the other, each from the first source that has it."""
        target = stream.target
        assert target is not None
        if not stream.open:
            return
        if not parts:
            self._fetched(target, stream, effect, got)
        elif not parts[0]:
            target.arena.end_write(effect.slot, stream, None)
            self._close(stream)
            self._notify_unless_cut(
                target,
                stream.generation,
                FetchFailed(rank=effect.rank, slot=effect.slot, reason="no source is left"),
            )
        else:
            source = parts[0].pop(0)
            self._world.after(self._world.push_s, partial(self._fetch_read, stream, effect, parts, got, source))

    def _fetch_read(
        self, stream: CopyStream, effect: FetchCopy, parts: list[list[Source]], got: list[Content], source: Source
    ) -> None:
        machine = self._world.incarnations.get(source.address.host)
        again = partial(self._fetch_read, stream, effect, parts, got, source)
        given_up = partial(self._fetch_part, stream, effect, parts, got)
        if not stream.open or self._stands_still(stream, machine, stream.target, again, given_up):
            return
        content = self._read(machine, source, effect.fetch.copy.seal.version, stream.generation)
        wanted = effect.fetch.copy.seal.digest
        if content is None or not _matches(content, source, wanted):
            if content is not None and stream.target is not None:
                version = effect.fetch.copy.seal.version
                damaged = SourceDamaged(node=source.node, rank=source.rank, version=version)
                self._report(stream.target, stream.generation, damaged)
            given_up()
        else:
            self._fetch_part(stream, effect, parts[1:], [*got, content])

    def _read(
        self, machine: Machine | None, source: Source, version: Version, generation: Generation
    ) -> Content | None:
        if machine is None or not machine.alive or machine.oldest_admitted > generation:
            return None
        copies = machine.agent.copies
        places = (copies.own.get(source.rank), copies.held.get(source.rank))
        slot = next((found for rank_slots in places if rank_slots and (found := rank_slots.find(version))), None)
        return machine.arena.snapshot(slot.ref) if slot else None

    def _fetched(self, target: Machine, stream: CopyStream, effect: FetchCopy, got: list[Content]) -> None:
        copy = effect.fetch.copy
        first = got[0]
        content = Content(copy.seal.rank, copy.seal.version, first.unique, got[-1].replica, first.course)
        target.arena.end_write(effect.slot, stream, content)
        self._close(stream)
        target.feed(Fetched(rank=effect.rank, slot=effect.slot, copy=copy))

    # --- streams that stand still ------------------------------------------------------------------------------------

    def _stands_still(
        self,
        stream: CopyStream,
        source: Machine | None,
        target: Machine | None,
        again: Callable[[], None],
        given_up: Callable[[], None] | None = None,
    ) -> bool:
        """If nothing gets through or one end does not run, the stream is tried again or fails when its deadline is
        over."""
        if source is None or target is None:
            return False
        if not (self._world.network.is_severed(source.name, target.name) or source.is_paused or target.is_paused):
            return False
        fail = given_up or partial(self._fail_both, stream, "stood still")
        self._world.after(STALLED_S, again if self._world.rng.random() < 0.5 else fail)
        return True

    def _fail_both(self, stream: CopyStream, reason: str, refusal: Refusal | None = None) -> None:
        """Each end learns of the failure by itself."""
        if not stream.open:
            return
        target, slot = stream.target, stream.slot
        if target is not None and slot is not None:
            self._end_write(stream, slot, None)
            self._notify_unless_cut(target, stream.generation, _failed(stream, slot, reason))
        self._push_failed(stream, reason, refusal)

    # --- ends --------------------------------------------------------------------------------------------------------

    def cut(self, machine: Machine, generation: Generation) -> None:
        """New streams are refused at once. Those that run end a little later, and only then is the agent told."""
        machine.oldest_admitted = generation
        self._world.after(0.5, partial(self._cut, machine, generation))

    def _cut(self, machine: Machine, generation: Generation) -> None:
        for stream in [stream for stream in machine.streams if stream.generation < generation]:
            self._break(stream, machine)
        self._world.durable.cut(machine, generation)
        machine.streams_cut = generation
        machine.feed(StreamsCut(generation=generation))

    def on_machine_death(self, machine: Machine) -> None:
        """Bytes that it had sent already may still arrive."""
        for stream in list(machine.streams):
            effect = stream.effect
            if stream.source is machine and stream.slot is not None and self._world.rng.random() < IN_FLIGHT:
                assert isinstance(effect, Push)
                stream.content, stream.source = self._sent(stream, effect), None
                machine.streams.remove(stream)
            else:
                self._break(stream, machine)

    def _break(self, stream: CopyStream, by: Machine) -> None:
        """The other end is told, unless its own streams have been cut by then."""
        if not stream.open:
            return
        self._close(stream)
        if stream.target is not None and stream.slot is not None:
            self._end_write(stream, stream.slot, None)
            if stream.target is not by:
                failed = _failed(stream, stream.slot, "the sender has gone")
                self._notify_unless_cut(stream.target, stream.generation, failed)
        if stream.source is not None and stream.source is not by:
            self._push_failed(stream, "the holder has gone")

    def _end_write(self, stream: CopyStream, slot: SlotRef, content: Content | None) -> None:
        assert stream.target is not None
        stream.target.arena.end_write(slot, stream, content)
        stream.target.arena.end_fold(slot, stream, content)

    def _close(self, stream: CopyStream) -> None:
        stream.open = False
        for machine in (stream.source, stream.target):
            if machine is not None and stream in machine.streams:
                machine.streams.remove(stream)

    def _report(self, machine: Machine, generation: Generation, damaged: SourceDamaged) -> None:
        """At once, so that it comes before the end of the fetch."""
        if machine.streams_cut <= generation:
            machine.feed(damaged)

    def _notify_unless_cut(self, machine: Machine, generation: Generation, input: Any) -> None:
        """No news of a stream comes after StreamsCut, which says that there are no such streams any more."""

        def notify() -> None:
            if machine.streams_cut <= generation:
                machine.feed(input)

        self._world.after(self._world.latency_s(), notify)


def _failed(stream: CopyStream, slot: SlotRef, reason: str) -> ReceiveFailed:
    effect = stream.effect
    rank = effect.copy.seal.rank if isinstance(effect, Contribute) else -1
    return ReceiveFailed(slot=slot, reason=reason, rank=rank)


def _matches(content: Content, source: Source, wanted: Digest) -> bool:
    same_unique = "unique" not in source.regions or content.unique == wanted.unique
    same_record = "record" not in source.regions or content.course == wanted.record
    return same_record and same_unique and ("replica" not in source.regions or content.replica == wanted.replica)
