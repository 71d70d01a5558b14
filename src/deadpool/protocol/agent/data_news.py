"""What a node's data plane has done of what it was told, and what other nodes ask of it."""

from __future__ import annotations

from deadpool.protocol.agent.seating import Seating
from deadpool.protocol.agent.state import Station
from deadpool.protocol.agent.unwinding import Unwinding
from deadpool.protocol.effects import (
    AgentInput,
    Allocated,
    AllocationFailed,
    Fetched,
    FetchFailed,
    Hashed,
    Offered,
    Pushed,
    PushFailed,
    Received,
    ReceiveFailed,
    SourceSpoilt,
    StreamsCut,
    WrittenOut,
)
from deadpool.protocol.messages import Salvaged, Spoilt


class DataNews:
    def __init__(self, station: Station, *, unwinding: Unwinding, seating: Seating) -> None:
        self._station, self._store = station, station.store
        self._unwinding, self._seating = unwinding, seating

    def hear(self, input: AgentInput) -> None:
        self._note(input)
        self._seating.grant_all()
        self._seating.announce_all()

    def _note(self, input: AgentInput) -> None:
        station, store = self._station, self._store
        match input:
            case Allocated(segment=segment):
                store.allocated(segment)
            case AllocationFailed(segment=segment, reason=reason):
                store.allocation_failed(segment, reason)
                station.emit("arena_full", reason=reason)
            case Hashed(slot=slot, digest=digest):
                store.hashed(slot, digest)
                self._unwinding.maybe_ack()
            case Pushed(rank=rank, node=node, version=version):
                store.push_ended(rank, node, version, None)
            case PushFailed(rank=rank, node=node, version=version, reason=reason):
                store.push_ended(rank, node, version, reason)
                station.emit("push_failed", rank=rank, step=version.number, holder=node, reason=reason)
            case Fetched(rank=rank, slot=slot, copy=copy):
                if store.fetched(slot, copy):
                    self._seating.snapshot_came(rank)
            case FetchFailed(rank=rank, slot=slot, reason=reason):
                if store.fetch_failed(slot):
                    self._seating.lost(rank, f"no source gave the snapshot of rank {rank}: {reason}")
            case StreamsCut(generation=generation):
                self._unwinding.streams_cut(generation)
            case Offered():
                store.offered(input)
            case Received(slot=slot, copy=copy, bytes_received=count):
                store.received(slot, copy, count)
            case ReceiveFailed(slot=slot):
                store.arrival_failed(slot)
            case SourceSpoilt(node=node, rank=rank, version=version):
                spoilt = Spoilt(generation=station.generation, node=node, rank=rank, version=version)
                station.tell_coordinator(spoilt)
            case WrittenOut(ranks=ranks, folder=folder, failure=failure):
                salvaged = Salvaged(generation=station.generation, ranks=ranks, folder=folder, failure=failure)
                station.tell_coordinator(salvaged)
