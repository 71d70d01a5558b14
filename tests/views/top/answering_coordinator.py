"""A listener that proves the secret as a coordinator does and answers what commands ask, with a status of any size.

The status is what a real core says of itself (`deadpool.control.coordinator.status.describe`); no node runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from waiting import LIMIT_S

from deadpool.control.coordinator.status import describe
from deadpool.control.launch.run_dir import RunDir
from deadpool.protocol.coordinator.core import Coordinator
from deadpool.protocol.coordinator.outbox import CoordinatorConfig, Deadlines
from deadpool.protocol.identity import Address, Layout, Schedule
from deadpool.protocol.inputs import FromAgent
from deadpool.protocol.messages import Answer, Ask, Join, Settings
from deadpool.wire.control_link import ServedLink
from deadpool.wire.listener import AuthenticatedListener


def status_of(nodes: int, spares: int = 1) -> dict[str, Any]:
    deadlines = Deadlines(node_s=9, fence_s=9, prepare_s=9, connect_s=9, spare_wait_s=9, hang_s=9)
    settings = Settings(layout=Layout(positions=nodes, per_node=1, holders=1), slots=2, heartbeat_s=1, unwind_s=4)
    core = Coordinator(CoordinatorConfig(settings=settings, deadlines=deadlines, schedule=Schedule(every=2)))
    for index in range(nodes + spares):
        name, rack = f"gpu-{index:04}", f"r{index // 32}"
        join = Join(node=name, incarnation="a", data=Address(host="h", port=1), spare=index >= nodes, rack=rack)
        core.step(FromAgent(node=name, message=join), now=0)
    facts = {member: {"arena_bytes": 3_000_000_000, "bytes_pushed": 10**9, "push_gbps": 1.5} for member in core.members}
    return describe(core, facts) | {"last_fault": None}


class AnsweringCoordinator:
    def __init__(self, folder: Path, status: dict[str, Any]) -> None:
        self.run_dir = RunDir.create(folder)
        self.status, self.asked = status, list[Ask]()
        self._started, self._ended = threading.Event(), None

    @contextlib.contextmanager
    def running(self) -> Iterator[AnsweringCoordinator]:
        self.run_dir.make_secret()
        thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        thread.start()
        try:
            assert self._started.wait(LIMIT_S)
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        credentials = self.run_dir.credentials(serving=True, tls="off")
        listener = AuthenticatedListener(credentials, "control", self._serve_link, lambda reason, count: None)
        self.run_dir.announce(await listener.start("127.0.0.1", 0), tls="off")
        self._started.set()
        await self._stop.wait()
        await listener.stop_listening()
        await listener.close()

    async def _serve_link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = ServedLink(reader, writer)
        await link.listen(lambda message: link.send(self._answer(message)))

    def _answer(self, ask: Ask) -> Answer:
        self.asked.append(ask)
        if ask.what == "status":
            return Answer(body=self.status)
        return Answer(body={}, error=f"no spare can take the ranks of {ask.arguments['node']}")
