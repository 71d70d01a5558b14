"""What a node's data plane has finished, and what other nodes ask of it."""

from __future__ import annotations

from typing import assert_never

from deadpool.protocol.agent.leadership.heartbeat import Heartbeats
from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.seating import Seating
from deadpool.protocol.agent.trainers.unwinding import Unwinding
from deadpool.protocol.causes import FaultKind
from deadpool.protocol.inputs import (
    Allocated,
    AllocationFailed,
    DataInput,
    Fetched,
    FetchFailed,
    Hashed,
    Offered,
    Pushed,
    PushFailed,
    Received,
    ReceiveFailed,
    SourceDamaged,
    StreamsCut,
    WrittenOut,
)
from deadpool.protocol.messages import CopyLost, Salvaged


class DataNews:
    def __init__(self, state: AgentState, *, unwinding: Unwinding, seating: Seating, heartbeats: Heartbeats) -> None:
        self._state, self._copies = state, state.copies
        self._unwinding, self._seating, self._heartbeats = unwinding, seating, heartbeats

    def on_input(self, input: DataInput) -> None:
        """Any of these may have freed a slot or begun a fetch, so trainers are told of both."""
        self._apply(input)
        self._seating.grant_slots()
        self._seating.announce_arrivals()

    def _apply(self, input: DataInput) -> None:
        state, copies, generation = self._state, self._copies, self._state.current.generation
        match input:
            case Allocated(segment=segment):
                copies.on_allocated(segment)
            case AllocationFailed(segment=segment, reason=reason):
                if not copies.on_allocation_failed(segment, reason):
                    state.emit("arena_full", reason=reason)
            case Hashed(slot=slot, digest=digest):
                copies.on_hashed(slot, digest)
                self._unwinding.acknowledge_if_frozen()
            case Pushed(rank=rank, node=node, version=version, seconds=seconds):
                copies.on_push_ended(rank, node, version, None)
                self._heartbeats.on_sent(rank, node, seconds)
            case PushFailed(rank=rank, node=node, version=version, reason=reason, refusal=refusal):
                copies.on_push_ended(rank, node, version, input)
                cause = refusal and refusal.value
                state.emit("push_failed", rank=rank, step=version.number, holder=node, refusal=cause, reason=reason)
            case Fetched(rank=rank, slot=slot, copy=copy):
                if copies.on_fetched(slot, copy):
                    self._seating.on_snapshot(rank)
            case FetchFailed(rank=rank, slot=slot, reason=reason, fallback=fallback):
                if (unread := copies.arrivals.on_fetch_failed(slot)) is not None:
                    why = f"no source gave the snapshot of rank {rank}: {reason}"
                    self._seating.report_lost(rank, FaultKind.UNREAD, why, unread=unread, fallback=fallback)
            case StreamsCut(generation=cut):
                self._unwinding.on_streams_cut(cut)
            case Offered():
                copies.on_offered(input)
            case Received(slot=slot, copy=copy, bytes_received=count):
                copies.on_received(slot, copy, count)
            case ReceiveFailed(slot=slot, rank=rank):
                copies.on_receive_failed(slot, rank)
            case SourceDamaged(node=node, rank=rank, version=version, group=group):
                damaged = CopyLost(generation=generation, node=node, rank=rank, version=version, group=group)
                state.tell_coordinator(damaged)
            case WrittenOut(ranks=ranks, folder=folder, failure=failure):
                state.tell_coordinator(Salvaged(generation=generation, ranks=ranks, folder=folder, failure=failure))
            case _ as never:
                assert_never(never)
