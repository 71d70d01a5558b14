"""A node of a large job: the real agent core, and scripted trainers that only answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, assert_never

from msgspec.structs import replace

from deadpool.protocol.agent.core import Agent
from deadpool.protocol.effects import (
    AcceptOffer,
    AgentEffect,
    Allocate,
    Contribute,
    CutStreams,
    DataEffect,
    Emit,
    FeatureEffect,
    FetchCopy,
    Finish,
    HashSlot,
    ImportModules,
    KillTrainer,
    LookElsewhere,
    ProbePeers,
    Push,
    PushCopy,
    RefuseOffer,
    ReleaseLease,
    ReleaseSegment,
    StartParkedWork,
    StartTrainer,
    StopParkedWork,
    TakeLease,
    ToCoordinator,
    ToTrainer,
    WriteOut,
    WriteSeal,
)
from deadpool.protocol.identity import Address, Version
from deadpool.protocol.inputs import (
    Allocated,
    CoordinatorFound,
    Fetched,
    FromCoordinator,
    FromTrainer,
    Hashed,
    Offered,
    Pushed,
    PushFailed,
    Received,
    StreamsCut,
    Tick,
    TrainerExited,
)
from deadpool.protocol.messages import (
    Captured,
    Connect,
    Connected,
    Declare,
    Grant,
    Halt,
    Halted,
    Join,
    Live,
    Parked,
    Prepared,
    Rehearse,
    Restore,
    Seat,
    SlotRef,
    Stepped,
    TrainerHello,
)
from deadpool.protocol.seal import Digest, Geometry

_MASK = 2**62 - 1

GEOMETRY = Geometry(record_capacity=65536, unique_bytes=10_000_000_000, replica_bytes=0)
Send = Callable[[str, Any], None]


class ScriptedTrainer:
    """A trainer that answers its agent as a real one would, and computes nothing."""

    def __init__(self, name: str, node: ScriptedNode) -> None:
        self.name, self._node = name, node
        self.rank = -1
        self.version: Version | None = None
        self.slots: deque[SlotRef] = deque()

    def on_message(self, message: Any) -> None:
        match message:
            case Seat(rank=rank):
                self.rank = rank
            case Rehearse(rank=rank):
                self.send(Parked(rank=rank, geometry=GEOMETRY))
            case Grant(slot=slot):
                self.slots.append(slot)
            case Connect(generation=generation):
                self.send(Connected(generation=generation, rank=self.rank))
            case Halt(generation=generation):
                self.slots.clear()
                live = Live(rank=self.rank, version=self.version, clean=True)
                self.send(Halted(generation=generation, live=live))
            case Restore(generation=generation, version=version):
                self.version = version
                address = Address(host=self._node.name, port=1)
                self.send(Prepared(generation=generation, rank=self.rank, store=address))
            case _:
                pass

    def send(self, message: Any) -> None:
        self._node.feed(FromTrainer(trainer=self.name, message=message))

    def begin(self) -> None:
        """Enters the loop: the trainer stands at version 0 and declares its state."""
        self.version = Version(self._node.agent.generation, 0)
        self.send(Declare(geometry=GEOMETRY, peers=()))

    def capture(self) -> None:
        if self.slots and self.version is not None:
            slot, generation = self.slots.popleft(), self._node.agent.generation
            self.send(Captured(generation=generation, version=self.version, slot=slot, record_bytes=4000))

    def step(self, number: int, step_s: float) -> None:
        generation = self._node.agent.generation
        self.version = Version(generation, number)
        self.send(Stepped(generation=generation, number=number, step_s=step_s, stall_s=0.01, copy_s=0.5, waited_s=0.1))


class ScriptedNode:
    """`send` takes the agent's messages to the coordinator; `peers` are all nodes by name."""

    def __init__(self, name: str, *, spare: bool, peers: dict[str, ScriptedNode], send: Send) -> None:
        self.name, self.spare, self._peers, self._send = name, spare, peers, send
        self.agent = Agent(node=name, spare=spare)
        self.trainers: dict[str, ScriptedTrainer] = {}
        self.now = 0.0
        self._inputs: deque[Any] = deque()
        self._busy = False
        self._offers: dict[int, tuple[ScriptedNode, Push]] = {}
        self._offer_count = 0

    def join(self) -> Join:
        self.feed(CoordinatorFound())
        data = Address(host=f"10.0.{len(self._peers) // 250}.{len(self._peers) % 250}", port=45678)
        return replace(
            Join(node=self.name, incarnation=self.name, data=data, spare=self.spare), footing=self.agent.footing
        )

    def on_message(self, term: int, message: Any) -> None:
        self.feed(FromCoordinator(term=term, message=message))

    def tick(self, now: float) -> None:
        self.now = now
        self.feed(Tick())

    def seated(self) -> list[ScriptedTrainer]:
        return [trainer for trainer in self.trainers.values() if trainer.rank >= 0]

    def feed(self, input: Any) -> None:
        """The agent handles one input at a time, as under its real driver."""
        self._inputs.append(input)
        if self._busy:
            return
        self._busy = True
        while self._inputs:
            for effect in self.agent.step(self._inputs.popleft(), now=self.now):
                self._perform(effect)
        self._busy = False

    def _perform(self, effect: AgentEffect) -> None:
        match effect:
            case ToCoordinator(message=message):
                self._send(self.name, message)
            case ToTrainer(trainer=name, message=message):
                if name in self.trainers:
                    self.trainers[name].on_message(message)
            case ImportModules():
                pass  # simulated processes import nothing
            case StartTrainer(trainer=name):
                self.trainers[name] = ScriptedTrainer(name, self)
                self.trainers[name].send(TrainerHello(trainer=name, pid=1, store=Address(host=self.name, port=1)))
            case KillTrainer(trainer=name):
                if self.trainers.pop(name, None) is not None:
                    self.feed(TrainerExited(trainer=name, code=-9, reason="killed"))
            case Emit() | Finish() | LookElsewhere() | ProbePeers() | TakeLease() | ReleaseLease():
                pass  # nothing of that is measured here
            case StartParkedWork() | StopParkedWork():
                pass
            case _:
                self._perform_on_memory(effect)

    def _perform_on_memory(self, effect: DataEffect) -> None:
        match effect:
            case Allocate(segment=segment):
                self.feed(Allocated(segment=segment))
            case HashSlot(slot=slot):
                digest = Digest(record=hash((slot.segment, 1)) & _MASK, unique=hash(self.name) & _MASK, replica=0)
                self.feed(Hashed(slot=slot, digest=digest))
            case PushCopy(holder=holder) | Contribute(holder=holder):
                self._peers[holder.node].offer(self, effect)
            case AcceptOffer(offer=offer, slot=slot):
                self._take(*self._offers.pop(offer), slot)
            case RefuseOffer(offer=offer, refusal=refusal):
                source, push = self._offers.pop(offer)
                seal = push.copy.seal
                why, rank, version = refusal.value, seal.rank, seal.version
                source.feed(PushFailed(rank=rank, version=version, node=self.name, refusal=refusal, reason=why))
            case CutStreams(generation=generation):
                self.feed(StreamsCut(generation=generation))
            case FetchCopy(rank=rank, slot=slot, fetch=fetch):
                self.feed(Fetched(rank=rank, slot=slot, copy=fetch.copy))
            case ReleaseSegment() | WriteSeal() | WriteOut() | FeatureEffect():
                pass  # there is no memory behind a slot, and no store
            case _ as never:
                assert_never(never)

    # --- copies of others --------------------------------------------------------------------------------------------

    def offer(self, source: ScriptedNode, push: Push) -> None:
        self._offer_count += 1
        self._offers[self._offer_count] = (source, push)
        self.feed(Offered(offer=self._offer_count, generation=push.generation, copy=push.copy))

    def _take(self, source: ScriptedNode, push: Push, slot: SlotRef) -> None:
        self.feed(Received(slot=slot, copy=push.copy, bytes_received=1))
        seal = push.copy.seal
        source.feed(Pushed(rank=seal.rank, version=seal.version, node=self.name))
