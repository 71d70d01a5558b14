"""A trainer loads what arrives in its agent's arena: sources that die, a fence in the middle, bit for bit in the end.

The agent's real data plane with its own thread and event loop, sources in processes of their own, the trainer here.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from capture_bench import SessionTwin
from device_twin import DeviceTwin
from torch import nn
from waiting import LIMIT_S, wait_until

from deadpool.control.agent.data_plane import DataPlane
from deadpool.control.agent.threads import ThreadPriority
from deadpool.protocol.effects import Allocate, CutStreams, FetchCopy, WriteSeal
from deadpool.protocol.identity import Address, Generation, Schedule, Version
from deadpool.protocol.inputs import Allocated, Fetched, FetchFailed, StreamsCut
from deadpool.protocol.messages import Arriving, Copy, Fetch, Restore, SlotRef, Source
from deadpool.protocol.recovery_walk import Load, RecoveryWalk
from deadpool.protocol.seal import Seal
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.state.state import ProtectedState
from deadpool.trainer.current import Superseded
from deadpool.trainer.process.session import Session
from deadpool.trainer.recovery import recovery
from deadpool.trainer.recovery.loading import load_what_arrives
from deadpool.trainer.shares.shares import StepShares
from deadpool.wire.credentials import Credentials
from deadpool_lab.workload.sealed_slot import seal_slot

SECRET = secrets.token_bytes(32)
FIRST, PLANNED, NEXT = Generation(1, 1), Generation(1, 2), Generation(1, 3)
VERSION = Version(FIRST, 5)
SLOT = SlotRef(segment=1, index=0)
WAIT_S = LIMIT_S
ALL_BYTES, SOME_BYTES = 1 << 40, 6 << 20
"""What a source gives before it waits: everything, or a whole tensor and not all of them."""


class Script:
    """A model of 24 MiB with as much momentum: several pieces on the wire, and chunks of 4 MiB."""

    def __init__(self, seed: int, lane: DeviceTwin | None = None) -> None:
        torch.manual_seed(seed)
        self.model = nn.ParameterList(torch.randn(1 << 20) for _ in range(6))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        more: dict[str, Any] = {"make_lane": lambda _: lane} if lane else {}
        objects = {"model": self.model, "optimizer": self.optimizer}
        self.state = ProtectedState(objects, replicas={}, rank=0, node_of=int, **more)

    def step(self) -> None:
        self.optimizer.zero_grad()
        sum(each.square().sum() for each in self.model).backward()  # type: ignore[union-attr]
        self.optimizer.step()


class Plane:
    """The data plane of the newcomer's agent. News for its core come in a queue."""

    def __init__(self) -> None:
        self.news: queue.Queue[Any] = queue.Queue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.plane: DataPlane = asyncio.run_coroutine_threadsafe(self._make(), self._loop).result(WAIT_S)

    async def _make(self) -> DataPlane:
        return DataPlane(
            SimpleNamespace(copies=None),  # type: ignore[arg-type]  # these nodes hold nothing for others
            host="127.0.0.1",
            credentials=Credentials(SECRET),
            post=self.news.put,
            note=self.news.put,
            disturb=lambda *_: None,
            deadline_s=WAIT_S,
            priority=ThreadPriority(0),
            kept=Path("/nowhere"),
        )

    def perform(self, effect: Any) -> None:
        self._loop.call_soon_threadsafe(self.plane.perform, effect)

    def hear(self, kind: type) -> Any:
        while not isinstance(news := self.news.get(timeout=WAIT_S), kind):
            pass
        return news

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(WAIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    async def _close(self) -> None:
        await asyncio.to_thread(self.plane.close)


class Trainer(SessionTwin):
    """A session that the test talks to, in place of the agent."""

    look_for, expect, next_action = Session.look_for, Session.expect, Session.next_action
    slot, unready_slot, store_address = Session.slot, Session.unready_slot, None

    def __init__(self, script: Script, segment: Segment) -> None:
        super().__init__()
        self.segments = {SLOT.segment: segment}
        self.core.take_seat(PLANNED, 0, Schedule())
        self.walk = RecoveryWalk(self.core)
        self.job: Any = SimpleNamespace(is_in_loop=True, session=self, state=script.state, adapters=[], record=b"")
        self.job.shares = StepShares(self.job, {}, {})

    def halt(self) -> None:
        with self.changed:
            self.core.halt(NEXT)
            self.changed.notify_all()

    def hear(self, message: Any) -> None:
        with self.changed:
            self.walk.on_order(message)
            self.changed.notify_all()

    def stand(self, generation: Generation) -> dict[str, Any]:
        """Takes the first part of the walk and returns what was reported of it."""
        with self.changed:
            self.walk.begin(generation)
        early = None
        while not isinstance(action := self.next_action(), Load):
            early = load_what_arrives(self.job, generation)
        recovery._restore(self.job, action.restore, early)
        return next(each[1] for each in reversed(self.said) if isinstance(each, tuple) and each[0] == "restored")


class SourceProcess:
    def __init__(self, *arguments: str) -> None:
        script = Path(__file__).with_name("source_process.py")
        command = [sys.executable, str(script), *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        host, port = json.loads(self._process.stdout.readline())
        self.source = Source(node="n", address=Address(host=host, port=port), rank=0, regions=("record", "unique"))

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go on\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self.kill()
        self._process.communicate(timeout=WAIT_S)


class EarlyLoadBench:
    def __init__(self, stack: ExitStack, folder: Path, lane: DeviceTwin | None = None) -> None:
        self._stack, self._folder = stack, folder
        self.script = Script(seed=1)
        self.script.step()
        self.geometry = self.script.state.measure()
        self.seal = self._capture()
        self.digest = self.script.state.digest()
        self.agent = Plane()
        stack.callback(self.agent.close)
        self.agent.perform(Allocate(segment=1, geometry=self.geometry, count=1))
        self.agent.hear(Allocated)
        mapped = Segment.attach(os.dup(self.agent.plane.descriptor(1)), self.geometry, 1)
        stack.callback(mapped.close)
        self.newcomer = Script(seed=2, lane=lane)
        self.trainer = Trainer(self.newcomer, mapped)

    def _capture(self) -> Seal:
        slot, record = memoryview(bytearray(self.geometry.slot_bytes)), self.script.state.record()
        start = self.geometry.offset("record")
        slot[start : start + len(record)] = record
        assert self.script.state.copy_bulk(slot, self.geometry, cancelled=lambda: False)
        self.script.state.release_slots()
        extent = self.script.state.extent(record)
        seal = seal_slot(slot, self.geometry, rank=0, version=VERSION, extent=extent)
        (self._folder / "slot").write_bytes(slot)
        return seal

    def source(self, given_bytes: int = ALL_BYTES) -> SourceProcess:
        """A node with the snapshot; it gives so much of it and waits."""
        geometry = json.dumps(msgspec.structs.asdict(self.geometry))
        made = SourceProcess(str(self._folder / "slot"), geometry, SECRET.hex(), str(given_bytes))
        self._stack.callback(made.close)
        return made

    def fetch(self, *sources: SourceProcess, generation: Generation = PLANNED) -> None:
        group = tuple(each.source for each in sources)
        fetch = Fetch(copy=Copy(seal=self.seal, geometry=self.geometry), groups=(group,))
        self.agent.perform(FetchCopy(slot=SLOT, rank=0, fetch=fetch, generation=generation))
        self.trainer.hear(Arriving(generation=generation, slot=SLOT, seal=self.seal))

    def restore_when_fetched(self, generation: Generation = PLANNED) -> None:
        """As the agent's core does it, in a thread."""

        def follow() -> None:
            fetched = self.agent.hear(Fetched)
            self.agent.perform(WriteSeal(slot=SLOT, copy=fetched.copy))
            self.agent._loop.call_soon_threadsafe(
                self.trainer.hear,
                Restore(generation=generation, version=VERSION, slot=SLOT, schedule=Schedule(), capture=False),
            )

        thread = threading.Thread(target=follow)
        thread.start()
        self._stack.callback(thread.join, WAIT_S)

    def await_first_chunk(self) -> None:
        """A tensor of the newcomer's is what it will be."""
        pairs = list(zip(self.newcomer.model, self.script.model, strict=True))
        wait_until(lambda: any(torch.equal(mine, wanted) for mine, wanted in pairs), "the first chunk")

    @property
    def is_restored(self) -> bool:
        return self.newcomer.state.digest() == self.digest


@pytest.fixture
def make_bench(tmp_path, monkeypatch) -> Iterator[Callable[..., EarlyLoadBench]]:
    monkeypatch.setattr("deadpool.snapshot.copying.slot_load.CHUNK_BYTES", 4 << 20)
    with ExitStack() as stack:
        yield lambda **options: EarlyLoadBench(stack, tmp_path, **options)


def test_loaded_while_it_arrives(make_bench):
    bench = make_bench()
    source = bench.source(SOME_BYTES)
    bench.restore_when_fetched()
    bench.fetch(source)
    standing = in_thread(lambda: bench.trainer.stand(PLANNED))
    bench.await_first_chunk()
    source.go_on()
    assert standing.get(timeout=WAIT_S)["early_bytes"] > 0
    assert bench.is_restored


def test_source_dies_in_the_middle_and_another_one_finishes(make_bench):
    bench = make_bench()
    dying, other = bench.source(SOME_BYTES), bench.source(1 << 20)
    bench.restore_when_fetched()
    bench.fetch(dying, other)
    standing = in_thread(lambda: bench.trainer.stand(PLANNED))
    bench.await_first_chunk()
    dying.kill()
    other.go_on()
    standing.get(timeout=WAIT_S)
    assert bench.is_restored


def test_all_sources_die_and_nothing_is_stood_at(make_bench):
    bench = make_bench()
    source = bench.source(SOME_BYTES)
    bench.fetch(source)
    standing = in_thread(lambda: bench.trainer.stand(PLANNED))
    bench.await_first_chunk()
    source.kill()
    bench.agent.hear(FetchFailed)
    with pytest.raises(queue.Empty):
        standing.get(timeout=0.1)
    bench.trainer.halt()
    assert isinstance(standing.get(timeout=WAIT_S), Superseded)


def test_fence_while_a_survivor_loads_and_the_next_plan_succeeds(make_bench):
    """It stood clean at a version that nobody resumes from: with its first chunk it stands nowhere."""
    bench = make_bench()
    core = bench.trainer.core
    core.live, core.clean = Version(FIRST, 7), True
    bench.fetch(bench.source(SOME_BYTES))
    standing = in_thread(lambda: bench.trainer.stand(PLANNED))
    bench.await_first_chunk()
    assert not core.clean
    bench.agent.perform(CutStreams(generation=NEXT))
    bench.trainer.halt()
    assert isinstance(standing.get(timeout=WAIT_S), Superseded)
    assert not core.rest().clean
    bench.agent.hear(StreamsCut)
    source = bench.source()
    bench.restore_when_fetched(NEXT)
    bench.fetch(source, generation=NEXT)
    bench.trainer.stand(NEXT)
    assert core.rest().clean and bench.is_restored


def test_fence_while_the_device_still_reads_the_slot(make_bench):
    """It is let go only when the device has done what it was told."""
    lane = DeviceTwin()
    bench = make_bench(lane=lane)
    bench.fetch(bench.source(SOME_BYTES))
    lane.computing = True
    standing = in_thread(lambda: bench.trainer.stand(PLANNED))
    bench.await_first_chunk()
    bench.trainer.halt()
    with pytest.raises(queue.Empty):
        standing.get(timeout=0.3)
    lane.computing = False
    lane.catch_up()
    assert isinstance(standing.get(timeout=WAIT_S), Superseded)
    bench.agent.perform(CutStreams(generation=NEXT))
    bench.agent.hear(StreamsCut)


def test_small_state_is_loaded_when_it_is_there(make_bench, monkeypatch):
    monkeypatch.setattr("deadpool.trainer.recovery.loading.WORTH_BYTES", 1 << 40)
    bench = make_bench()
    source = bench.source()
    bench.restore_when_fetched()
    bench.fetch(source)
    assert bench.trainer.stand(PLANNED)["early_bytes"] == 0
    assert bench.is_restored


def in_thread(work: Callable[[], Any]) -> queue.Queue[BaseException | Any]:
    """What comes of it."""
    outcome: queue.Queue[Any] = queue.Queue()

    def run() -> None:
        try:
            outcome.put(work())
        except BaseException as error:
            outcome.put(error)

    threading.Thread(target=run).start()
    return outcome
