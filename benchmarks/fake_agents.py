"""Fake agents for coordinator_load.py, about a thousand per process: they only answer, and take a second for a plan.

    python benchmarks/fake_agents.py RUN_DIR FIRST LAST NODES PER_NODE

Lines on standard input are orders: `lose NODE` ends that node's link, `end` ends all. Lines on standard output are
JSON: what happened here, and when (by time.monotonic(), which all processes of a machine share).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import msgpack

from deadpool.control.launch.run_dir import RunDir
from deadpool.control.loops import serve
from deadpool.protocol.identity import Address, Generation, Layout, Version
from deadpool.protocol.messages import (
    Copy,
    FenceAck,
    Heartbeat,
    Inventory,
    Join,
    Live,
    Lives,
    NodeConnected,
    NodeCopies,
    NodePrepared,
    Plan,
    Sealed,
    Stored,
)
from deadpool.protocol.seal import Digest, Extent, Geometry, Seal
from deadpool.wire.codec import Framer
from deadpool.wire.control_link import connect, framed
from deadpool.wire.credentials import Credentials

GEOMETRY = Geometry(record_capacity=65536, unique_bytes=10_000_000_000, replica_bytes=0)
EXTENT = Extent(record_bytes=4000, unique_bytes=10_000_000_000, replica_bytes=0)
CONNECTING_AT_ONCE = 64
PREPARING_S = 1.0
VERSIONS = 2
STORE_RANK = Plan.__struct_fields__.index("store_rank")
ORDERS = Plan.__struct_fields__.index("orders")


class FakeAgent(asyncio.Protocol):
    """Has the ranks of its position, and would hold the copies of the position before."""

    def __init__(self, name: str, position: int | None, layout: Layout, crowd: Crowd) -> None:
        self.name, self.position, self._layout, self._crowd = name, position, layout, crowd
        self._address = Address(host="127.0.0.1", port=1 + (position or 0))
        self._take_seat(position)
        self._version = 0
        self._generation = Generation(1, 1)
        self._skips_a_beat = False  # real agents send no heartbeat right after a fence
        self._ready: dict[Generation, bytes] = {}  # acknowledgements to send when the fence comes

    def _take_seat(self, position: int | None) -> None:
        layout = self._layout
        self._ranks = layout.ranks_at(position) if position is not None else range(0)
        self._held = layout.ranks_at((position - 1) % layout.positions) if position is not None else range(0)

    async def live(self, address: Address, credentials: Credentials) -> None:
        link = await connect(address, credentials, patience_s=60.0)
        self._framer = Framer()
        link._writer.transport.set_protocol(self)  # so that no task is woken for each message
        self._link, self.hang_up = link, link.abort
        self._send(Join(node=self.name, incarnation=self.name, data=self._address, spare=self.position is None))

    def _write(self, data: bytes) -> None:
        self._crowd.bytes_sent += len(data)
        self._link.send_framed(data)

    def data_received(self, data: bytes) -> None:
        self._crowd.bytes_received += len(data)
        for payload in self._framer.feed(data):
            _, _, (kind, *fields) = msgpack.unpackb(payload, use_list=False, strict_map_key=False)
            self._on_message(kind, tuple(fields))

    def _send(self, message: Any) -> None:
        self._write(framed(message))

    def _on_message(self, kind: str, fields: tuple[Any, ...]) -> None:
        """Dispatches by name without decoding the message, because the work of agents is not measured."""
        match kind:
            case "Welcome":
                self._crowd.welcomed += 1
            case "Fence":
                self._acknowledge(Generation(*fields[0]))
            case "Plan":
                self._crowd.note("plan")
                self._carry_out(Generation(*fields[0]), fields)
            case "Connect":
                self._send(NodeConnected(generation=Generation(*fields[0]), ranks=tuple(self._ranks)))
            case "Go":
                self._crowd.note("go")
                self._go(Generation(*fields[0]))

    def _carry_out(self, generation: Generation, plan: tuple[Any, ...]) -> None:
        asyncio.get_running_loop().call_later(PREPARING_S, self._prepare, generation, plan)

    def _prepare(self, generation: Generation, plan: tuple[Any, ...]) -> None:
        orders = plan[ORDERS]
        if orders and self.position is None:
            self.position = self._layout.position_of(orders[0][0])
            self._take_seat(self.position)
        store = self._address if plan[STORE_RANK] in self._ranks else None
        self._send(NodePrepared(generation=generation, ranks=tuple(self._ranks), store=store))

    def _go(self, generation: Generation) -> None:
        if generation != self._generation:
            return
        for number in range(VERSIONS):
            version = Version(generation, number)
            for rank in self._ranks:
                self._send(Sealed(generation=generation, copy=_copy(rank, version)))
            for rank in self._held:
                self._send(Stored(generation=generation, rank=rank, version=version, bytes_received=1))
        self._version = VERSIONS - 1

    def _acknowledge(self, generation: Generation) -> None:
        self._skips_a_beat = True
        self._write(self._ready.pop(generation, b"") or self._acknowledgement(generation))

    def get_ready(self, generation: Generation) -> None:
        """Encodes the acknowledgement in advance: real agents encode in parallel, but here they share a processor."""
        self._ready[generation] = self._acknowledgement(generation)

    def _acknowledgement(self, generation: Generation) -> bytes:
        version = Version(self._generation, self._version)
        inventory = Inventory(
            live=Lives.of(Live(rank=rank, version=version, clean=True) for rank in self._ranks),
            own=NodeCopies.of(_copy(rank, version) for rank in self._ranks),
            held=NodeCopies.of(_copy(rank, version) for rank in self._held),
        )
        return framed(FenceAck(generation=generation, inventory=inventory, planned=self._generation))

    def beat(self, generation: Generation, step: int) -> None:
        if not self._skips_a_beat:
            self._send(Heartbeat(generation=generation, steps=tuple((rank, step) for rank in self._ranks)))
        self._skips_a_beat = False


def _copy(rank: int, version: Version) -> Copy:
    digest = Digest(record=rank * 2**30, unique=rank * 2**40, replica=0)
    return Copy(
        seal=Seal(rank=rank, version=version, extent=EXTENT, digest=digest, full=True), geometry=GEOMETRY, peers=()
    )


class Crowd:
    """All fake agents of this process."""

    def __init__(self, folder: RunDir, agents: range, layout: Layout) -> None:
        self._address, self._credentials = folder.coordinator(), folder.credentials()
        self.agents: dict[str, FakeAgent] = {}
        for index in agents:
            spare = index >= layout.positions
            name = f"s{index}" if spare else f"n{index}"
            self.agents[name] = FakeAgent(name, None if spare else index, layout, self)
        self.welcomed = self.bytes_sent = self.bytes_received = 0
        self._counts: dict[str, int] = {}
        self._last: dict[str, float] = {}
        self._generation = Generation(1, 1)

    def note(self, what: str) -> None:
        """Counts a message, and records when the last one of its kind came."""
        self._counts[what] = self._counts.get(what, 0) + 1
        self._last[what] = time.monotonic()

    def report(self) -> None:
        counted = {"welcomed": self.welcomed, "counts": self._counts, "last": self._last, "now": time.monotonic()}
        wire = {"sent": self.bytes_sent, "received": self.bytes_received}
        print(json.dumps({**counted, "bytes": wire}), flush=True)

    async def run(self) -> None:
        gate = asyncio.Semaphore(CONNECTING_AT_ONCE)
        lives = [asyncio.create_task(self._live(agent, gate)) for agent in self.agents.values()]
        beats = asyncio.create_task(self._beat())
        await self._obey()
        beats.cancel()
        for life in lives:
            life.cancel()

    async def _live(self, agent: FakeAgent, gate: asyncio.Semaphore) -> None:
        async with gate:
            await asyncio.sleep(0)
        await agent.live(self._address, self._credentials)

    async def _beat(self) -> None:
        """Sends heartbeats evenly over the interval, like nodes that started at different times."""
        step = 0
        while True:
            step += 1
            began, agents = time.monotonic(), list(self.agents.values())
            for index, agent in enumerate(agents):
                if hasattr(agent, "hang_up"):
                    agent.beat(self._generation, step)
                if index % 16 == 0:
                    due = began + index / len(agents)
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
            await asyncio.sleep(max(0.0, began + 1.0 - time.monotonic()))

    async def _obey(self) -> None:
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            match line.split():
                case ["report"]:
                    self.report()
                case ["lose", name]:
                    print(json.dumps({"lost": time.monotonic()}), flush=True)
                    self._counts.clear()
                    self.agents.pop(name).hang_up()
                case ["clear"]:
                    self._counts.clear()
                    self.bytes_sent = self.bytes_received = 0
                    self._generation = Generation(1, 2)
                    for agent in self.agents.values():
                        agent.get_ready(self._generation)
                    print("{}", flush=True)
                case _:
                    return


if __name__ == "__main__":
    path, (first, last, nodes, per_node) = Path(sys.argv[1]), map(int, sys.argv[2:6])
    shape = Layout(positions=nodes, per_node=per_node, holders=1)

    async def main() -> None:
        await Crowd(RunDir(path), range(first, last), shape).run()

    serve(main())
