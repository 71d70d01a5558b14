"""The agent's data plane: carries out the core's effects on snapshots in threads, and posts their results.

The core decides on the event loop; memory is allocated, hashed, sent, received and fetched in worker threads. Every
result is posted back as an input, so that the core handles one input at a time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, assert_never

from deadpool.config.timeouts import stream_s
from deadpool.control.agent.fetches import Fetches
from deadpool.control.agent.offers import Offers
from deadpool.control.agent.rank_stats import SentBytes
from deadpool.control.agent.threads import ThreadPriority
from deadpool.control.agent.transports import Way, make_transport
from deadpool.control.shell_registry import data_shells, joint_shell
from deadpool.control.shells import DataPlaneAccess, JointAccess
from deadpool.errors import ArenaError, CopyDamaged, DeadPoolError
from deadpool.events.event import Event
from deadpool.protocol.agent.core import Agent
from deadpool.protocol.causes import Refusal
from deadpool.protocol.effects import (
    AcceptOffer,
    Allocate,
    Contribute,
    CutStreams,
    DataEffect,
    FeatureEffect,
    FetchCopy,
    HashSlot,
    Push,
    PushCopy,
    RefuseOffer,
    ReleaseSegment,
    WriteOut,
    WriteSeal,
)
from deadpool.protocol.identity import Address, Generation, Version
from deadpool.protocol.inputs import (
    AgentInput,
    Allocated,
    AllocationFailed,
    Hashed,
    Pushed,
    PushFailed,
    StopAsked,
    StreamsCut,
    WrittenOut,
)
from deadpool.protocol.messages import Settings, SlotRef
from deadpool.protocol.seal import Digest, Extent
from deadpool.snapshot.arena.arena import Arena, ArenaKey, Segment
from deadpool.snapshot.arena.checksums import HASHING_THREADS
from deadpool.snapshot.arena.salvage_file import write_salvage
from deadpool.snapshot.arena.slot import compute_piece_digests, write_seal
from deadpool.snapshot.transfer import (
    FoundCopy,
    Midway,
    PeerRefused,
    PushRequest,
    TransferClient,
    TransferRefused,
    TransferServer,
)
from deadpool.wire.credentials import Credentials

_ANSWER_S = 30.0
T = TypeVar("T")


class DataPlane:
    def __init__(
        self,
        core: Agent,
        *,
        host: str,
        credentials: Credentials,
        post: Callable[[AgentInput], None],
        note: Callable[[Event], None],
        disturb: Callable[[Push, memoryview], Midway | None],
        deadline_s: float,
        priority: ThreadPriority,
        kept: Path,
        way: Way = Way.TCP,
    ) -> None:
        """`post` takes inputs for the core, `note` takes events, `disturb` may change the slot of a push before it is
        read, and gives what is to happen, if anything, when the first bytes are sent; all three run on the event loop.
        `kept` is the folder for salvaged copies. `way` says how bytes travel."""
        self._core, self._post, self._disturb = core, post, disturb
        self._kept = kept
        self._loop = asyncio.get_running_loop()
        self._arena, self._adding = Arena(), threading.Lock()
        self._transport = make_transport(way, lambda event: self._on_loop(note, event), priority)
        self._client = TransferClient(credentials=credentials, deadline_s=deadline_s, transport=self._transport)
        self._workers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="data", initializer=priority.apply)
        self._hashers = ThreadPoolExecutor(HASHING_THREADS, thread_name_prefix="hash", initializer=priority.apply)
        self._movers = ThreadPoolExecutor(max_workers=16, thread_name_prefix="stream", initializer=priority.apply)
        self._moving: set[concurrent.futures.Future[None]] = set()
        self._offers = Offers(deliver=self._deliver, slot=self._slot, begin_joint=lambda a: self._joint.begin(a))
        self._joint = joint_shell(
            JointAccess(
                client=self._client,
                segment=self._segment,
                deliver=self._deliver,
                hashers=self._hashers,
                note=note,
                offer=self._offers.offer,
                copies=core.copies,
                on_loop=self._answer_on_loop,
            )
        )
        self._server = TransferServer(
            host=host,
            credentials=credentials,
            open=self._offers.open,
            stored=self._offers.stored,
            dropped=self._offers.dropped,
            find=self._find,
            deadline_s=deadline_s,
            joint=self._joint.frames,
            transport=self._transport,
        )
        self._fetches = Fetches(
            self._client,
            self._joint,
            slot=self._slot,
            deliver=self._deliver,
            note=lambda event: self._on_loop(note, event),
        )
        self._features = data_shells(
            DataPlaneAccess(
                deliver=self._deliver,
                slot=self._slot,
                stream=lambda work: self._stream(_call, work),
            )
        )
        self.sent = SentBytes()

    def start(self) -> Address:
        host, port = self._workers.submit(self._server.start).result()  # its threads get the same priority
        return Address(host=host, port=port)

    def use(self, settings: Settings) -> None:
        """The job's settings are known only when a coordinator accepts the node."""
        self._features.use(settings)
        self._use_deadline(stream_s(settings.silence_s))

    def _use_deadline(self, deadline_s: float) -> None:
        """Sets the deadline of streams that are opened from now on."""
        self._client.use_deadline(deadline_s)
        self._server.use_deadline(deadline_s)

    def close(self) -> None:
        self._offers.refuse_all("the agent is leaving")
        self._features.close()
        self._client.close()
        self._server.close()
        for pool in (self._movers, self._workers, self._hashers):
            pool.shutdown(wait=True, cancel_futures=True)
        self._transport.close()
        self._arena.close()

    @property
    def arena_bytes(self) -> int:
        return self._arena.bytes_in_use

    def descriptor(self, segment: int) -> int:
        return self._segment(segment).fd

    def perform(self, effect: DataEffect) -> None:
        match effect:
            case Allocate():
                self._submit(self._allocate, effect)
            case ReleaseSegment(segment=segment):
                self._joint.forget(segment)
                self._release(_key(segment))
            case HashSlot():
                self._submit(self._hash, effect)
            case WriteSeal(slot=slot, copy=copy):
                write_seal(self._slot(slot), copy.seal)
            case PushCopy() | Contribute():
                midway = self._disturb(effect, self._slot(effect.slot))
                self._stream(functools.partial(self._push, midway=midway), effect)
            case FetchCopy(fetch=fetch) if fetch.fallback:
                self._features.load(effect)
            case FetchCopy():
                self._stream(self._fetches.fetch, effect)
            case FeatureEffect():
                self._features.perform(effect)
            case CutStreams(generation=generation):
                self._submit(self._cut, generation)
            case WriteOut():
                self._submit(self._write_out, effect)
            case AcceptOffer(offer=offer):
                self._offers.answer(offer, effect)
            case RefuseOffer(offer=offer, refusal=refusal, reason=reason):
                self._offers.answer(offer, TransferRefused(refusal=refusal, reason=reason))
            case _ as never:
                assert_never(never)

    # --- in worker threads -------------------------------------------------------------------------------------------

    def _submit(self, work: Callable[[T], None], argument: T) -> None:
        self._workers.submit(work, argument).add_done_callback(self._report_bug)

    def _stream(self, work: Callable[[T], None], argument: T) -> None:
        """Streams have threads of their own: a peer that hangs must not delay a fence or a checksum."""
        done = self._movers.submit(work, argument)
        self._moving = {task for task in self._moving if not task.done()} | {done}
        done.add_done_callback(self._report_bug)

    def _report_bug(self, done: concurrent.futures.Future[None]) -> None:
        """Expected failures are inputs. Any other one is a bug, and an agent with a bug must not hold copies."""
        if not done.cancelled() and (error := done.exception()) is not None:
            self._deliver(StopAsked(reason=f"bug in the data plane: {error!r}"))

    def _deliver(self, input: AgentInput) -> None:
        self._on_loop(self._post, input)

    def _on_loop(self, function: Callable[[T], None], argument: T) -> None:
        try:
            self._loop.call_soon_threadsafe(function, argument)
        except RuntimeError:
            return  # the loop is closed, because the agent ends

    def _allocate(self, effect: Allocate) -> None:
        try:
            segment = self._arena.create(_key(effect.segment), effect.geometry, effect.count)
            segment.prefault(range(1))  # a newcomer waits for one slot only; the others are made ready meanwhile
            self._deliver(Allocated(segment=effect.segment))
            segment.prefault(range(1, effect.count))
            with self._adding:
                if self._arena.get(_key(effect.segment)) is segment:  # it was not released meanwhile
                    self._transport.add(segment)
        except ArenaError as error:
            self._deliver(AllocationFailed(segment=effect.segment, reason=str(error)))

    def _release(self, key: ArenaKey) -> None:
        with self._adding:
            segment = self._arena.get(key)
            if segment is not None:
                self._transport.drop(segment)
            self._arena.drop(key)

    def _hash(self, effect: HashSlot) -> None:
        """A joint copy is hashed by who makes it, and a snapshot of one rank here."""
        digest = self._joint.hash(effect)
        self._deliver(Hashed(slot=effect.slot, digest=self._hash_snapshot(effect) if digest is None else digest))

    def _hash_snapshot(self, effect: HashSlot) -> Digest:
        geometry = effect.geometry
        extent = Extent(
            record_bytes=effect.record_bytes,
            unique_bytes=geometry.unique_bytes,
            replica_bytes=geometry.replica_bytes,
        )
        found = compute_piece_digests(self._slot(effect.slot), geometry, extent, self._hashers)
        self._joint.on_hashed(effect.slot, found)
        return found.digest

    def _write_out(self, effect: WriteOut) -> None:
        """No trainer writes to these slots: the node is fenced, and no plan follows."""
        written: list[int] = []
        failure = ""
        for ref, copy in effect.copies:
            try:
                write_salvage(self._kept, copy, self._slot(ref))
                written.append(copy.seal.rank)
            except OSError as error:
                failure = f"rank {copy.seal.rank}: {error}"
        self._deliver(WrittenOut(ranks=tuple(written), folder=str(self._kept.resolve()), failure=failure))

    def _push(self, effect: PushCopy | Contribute, midway: Midway | None) -> None:
        seal, holder = effect.copy.seal, effect.holder
        began = time.monotonic()
        try:
            match effect:
                case PushCopy():
                    count = self._push_copy(effect, midway)
                case Contribute():
                    count = self._joint.send(effect, midway)
                case _ as never:
                    assert_never(never)
        except DeadPoolError as error:
            refusal, reason = _refusal(error), str(error)
            failed = PushFailed(rank=seal.rank, version=seal.version, node=holder.node, refusal=refusal, reason=reason)
            self._deliver(failed)
            return
        seconds = time.monotonic() - began
        self.sent.note(seal.rank, holder.node, seal.version, count, seconds)
        self._deliver(Pushed(rank=seal.rank, version=seal.version, node=holder.node, seconds=seconds))

    def _push_copy(self, effect: PushCopy, midway: Midway | None) -> int:
        segment, address = self._segment(effect.slot.segment), effect.holder.address
        request = PushRequest(
            address=(address.host, address.port),
            generation=effect.generation,
            seal=effect.copy.seal,
            geometry=effect.copy.geometry,
            fd=segment.fd,
            slot_offset=segment.offset(effect.slot.index),
            full=effect.full,
        )
        return self._client.push(request, midway)

    def _cut(self, generation: Generation) -> None:
        """Reports only when no result of an older generation can follow: its last results are delivered before."""
        moving = set(self._moving)
        self._features.cut(generation)
        self._client.fence(generation)
        self._server.fence(generation)
        concurrent.futures.wait(moving)
        self._deliver(StreamsCut(generation=generation))

    # --- called by the transfer server's threads ---------------------------------------------------------------------

    def _find(self, rank: int, version: Version) -> FoundCopy | None:
        return self._answer_on_loop(lambda: self._look_up(rank, version))

    def _answer_on_loop(self, question: Callable[[], T]) -> T:
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._loop.call_soon_threadsafe(lambda: answer.set_result(question()))
        return answer.result(_ANSWER_S)

    def _look_up(self, rank: int, version: Version) -> FoundCopy | None:
        shelves = (self._core.copies.own.get(rank), self._core.copies.held.get(rank))
        slot = next((found for shelf in shelves if shelf and (found := shelf.find(version))), None)
        if slot is None or slot.copy is None:
            return None
        segment = self._segment(slot.ref.segment)
        return FoundCopy(
            fd=segment.fd,
            offset=segment.offset(slot.ref.index),
            seal=slot.copy.seal,
            geometry=slot.copy.geometry,
        )

    # --- memory ------------------------------------------------------------------------------------------------------

    def _segment(self, number: int) -> Segment:
        segment = self._arena.get(_key(number))
        assert segment is not None, f"segment {number} is gone"
        return segment

    def _slot(self, ref: SlotRef) -> memoryview:
        return self._segment(ref.segment).slot(ref.index)


def _refusal(error: DeadPoolError) -> Refusal | None:
    """What a push has failed by; None: the holder gave no answer."""
    match error:
        case PeerRefused(refusal=refusal):
            return refusal
        case CopyDamaged():  # found here, before anything was sent
            return Refusal.DAMAGED
        case _:
            return None


def _call(work: Callable[[], None]) -> None:
    work()


def _key(segment: int) -> ArenaKey:
    return ("segment", segment)
