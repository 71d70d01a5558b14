"""The coordinator process: an asyncio shell around the core, its connections to nodes, and requests of commands."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, assert_never

from deadpool.config.orders import InjectionOrder
from deadpool.control.console import print_line, print_record
from deadpool.control.coordinator.commands import Commands
from deadpool.control.coordinator.progress import (
    BEATS,
    ConsoleLines,
    ProgressReport,
    StorageWatch,
    now_and_then,
)
from deadpool.control.coordinator.requests import InjectionRpc
from deadpool.control.coordinator.status import bandwidth
from deadpool.control.loops import CoreDriver
from deadpool.control.shells import CoordinatorShell
from deadpool.events.event import Event
from deadpool.events.log import EventLog
from deadpool.protocol.coordinator.leadership.leadership import Leadership
from deadpool.protocol.effects import CoordinatorEffect, Drop, Emit, Finish, ToAgent
from deadpool.protocol.identity import Address, Message
from deadpool.protocol.inputs import (
    CoordinatorInput,
    FeatureInput,
    FromAgent,
    LinkLost,
    StopAsked,
    Tick,
)
from deadpool.protocol.messages import (
    Ask,
    Examined,
    Facts,
    Join,
    JoinRefused,
    Order,
    OrderMessage,
    Plan,
    Report,
    is_from_agent,
)
from deadpool.wire.control_link import ServedLink, framed
from deadpool.wire.credentials import Credentials
from deadpool.wire.listener import AuthenticatedListener, RefusedPeer

PORT_WAIT_S = 10.0
LOOK_S = 1.0  # from one look at the log's disk to the next
STALL_S = 0.1  # a timer that fires later than that means that this process did not run


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    failed: bool
    reason: str
    of_leader: bool  # false: this is the outcome of a standby process, and not of the job


@dataclass(slots=True)
class Caller:
    """The other end of a connection: a node once it has joined, a command, or not known yet."""

    link: ServedLink
    node: str | None = None


@dataclass(slots=True)
class LinkedNode:
    link: ServedLink
    incarnation: str
    facts: dict[str, Any] = field(default_factory=dict)


class CoordinatorServer:
    def __init__(
        self,
        leadership: Leadership,
        *,
        credentials: Credentials,
        log: EventLog,
        orders: list[InjectionOrder],
        became_leader: Callable[[], None],
        heartbeat_s: float,
        founds: bool,
        heard: Callable[[dict[str, Any]], None],
        print_events: bool = True,
        print_json: bool = False,
        features: Sequence[CoordinatorShell] = (),
    ) -> None:
        """`became_leader` is called when this process becomes the coordinator, also at the start of the job; `heard` is
        called with every event, and must return at once. `features` have a part in this process."""
        self._features = features
        self._leadership, self._log, self._prints_events = leadership, log, print_events
        self._prints_json = print_json
        self._became_leader, self._was_leader, self._heard = became_leader, False, heard
        self._peers: dict[str, LinkedNode] = {}
        self._last_order: tuple[Message | None, int, bytes] = (None, 0, b"")  # the last order: message, term, bytes
        self._injections = InjectionRpc(
            lambda: leadership.coordinator, orders, send=self._send, log_event=self.log_event
        )
        self._background: set[asyncio.Task[None]] = set()  # what takes long and keeps nothing waiting
        self._reception = AuthenticatedListener(credentials, "control", self._serve_link, self._on_refused)
        self._driver = CoreDriver(leadership, perform=self._perform, stall_s=STALL_S)
        self._outcome: asyncio.Future[JobOutcome] = asyncio.get_running_loop().create_future()
        self._console = ConsoleLines()
        self._progress, self._progress_s = ProgressReport(founds=founds), BEATS * heartbeat_s
        self._storage = StorageWatch("events", log.trouble, self.log_event, dropped=lambda: log.dropped)
        self.commands = Commands(
            leadership,
            injections=self._injections,
            storage=self._storage,
            facts=self._facts,
            feed=self._feed,
            send=self._send,
        )
        self._tasks: list[asyncio.Task[None]] = []  # that run as long as this process

    async def start(self, host: str, port: int) -> Address:
        """A coordinator that is started again needs its old port. For a moment another process may use it as the near
        end of a connection, so this waits."""
        deadline = time.monotonic() + PORT_WAIT_S
        while True:
            try:
                return await self._reception.start(host, port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)

    def open(self) -> None:
        """Begins its periodic work, so that this process may become the coordinator."""
        for call, gap_s in ((self._log_progress, self._progress_s), (self._storage.look, LOOK_S)):
            self._tasks.append(asyncio.get_running_loop().create_task(now_and_then(call, gap_s)))
        self._feed(Tick())

    async def wait(self) -> JobOutcome:
        return await asyncio.shield(self._outcome)

    def stop(self, reason: str) -> None:
        self._feed(StopAsked(reason=reason))

    def tell(self, input: FeatureInput) -> None:
        """A feature's part of this process was asked for something, or has found something."""
        self._feed(input)

    def _begin_leading(self, feature: CoordinatorShell) -> None:
        """What the feature looks for may be slow to come, and the job runs meanwhile."""
        self._run_in_background(self._lead(feature))

    def _run_in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _lead(self, feature: CoordinatorShell) -> None:
        match await asyncio.to_thread(feature.lead):
            case Event() as event:
                self.log_event(event)
            case FeatureInput() as input:
                self._feed(input)

    async def close(self) -> None:
        """Every node gets the last messages before its connection is closed."""
        self._driver.stop()
        for task in (*self._background, *self._tasks):
            task.cancel()
        await self._reception.stop_listening()
        await asyncio.gather(*(self._await_disconnect(peer.link) for peer in list(self._peers.values())))
        await self._reception.close()

    async def _await_disconnect(self, link: ServedLink) -> None:
        """Agents disconnect by themselves after a Shutdown. The connection of one that does not is closed."""
        try:
            async with asyncio.timeout(5.0):
                while any(peer.link is link for peer in self._peers.values()):
                    await asyncio.sleep(0.01)
        except TimeoutError:
            await link.close()

    # --- inputs ------------------------------------------------------------------------------------------------------

    async def _serve_link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = Caller(ServedLink(reader, writer))
        await caller.link.listen(partial(self._on_message, caller))
        if self._is_current(caller):
            assert caller.node is not None
            del self._peers[caller.node]
            self._feed(LinkLost(node=caller.node, reason=caller.link.lost_reason))

    def _on_refused(self, refused: RefusedPeer, count: int) -> None:
        self.log_event(Event(what="connection_refused", detail={"reason": refused.sentence, "count": count}))

    def _on_message(self, caller: Caller, message: Message) -> None:
        match message:
            case _ if caller.node is not None:
                if self._is_current(caller):
                    self._on_node_message(caller.node, message)
            case Ask(what="doctor") if self._leadership.is_leader:
                self._run_in_background(self._examine(caller.link, message))
            case Ask():
                caller.link.send(self.commands.answer(message))
            case Join() if self._is_another(message):
                refused = JoinRefused(
                    reason=f"a node named {message.node} is in the job already: give this one another --name"
                )
                caller.link.send(Order(term=self._leadership.term, message=refused))
            case Join():
                self._join(caller, message)
            case _:
                pass  # nothing else counts before a Join

    def _join(self, caller: Caller, join: Join) -> None:
        caller.node = join.node
        self._supersede(join.node)
        self._peers[join.node] = LinkedNode(caller.link, join.incarnation)
        self._feed(FromAgent(node=join.node, message=join))
        self._injections.joined(join.node)

    def _is_current(self, caller: Caller) -> bool:
        peer = self._peers.get(caller.node) if caller.node is not None else None
        return peer is not None and peer.link is caller.link

    def _is_another(self, join: Join) -> bool:
        return join.node in self._peers and self._peers[join.node].incarnation != join.incarnation

    def _supersede(self, node: str) -> None:
        """The agent connects again, so it has given up its last connection, whatever was seen of that here."""
        if (peer := self._peers.pop(node, None)) is not None:
            peer.link.abort()
            self._feed(LinkLost(node=node, reason="the agent connected again"))

    def _on_node_message(self, node: str, message: Message) -> None:
        match message:
            case Report(records=records):
                for record in records:
                    self._record(record)
            case Examined():
                self.commands.examinations.on_examined(node, message)
            case Facts(facts=facts):
                self._on_facts(node, facts)
            case _ if is_from_agent(message):
                self._feed(FromAgent(node=node, message=message))
            case _:
                self.log_event(Event(what="message_refused", node=node, detail={"message": type(message).__name__}))

    def _on_facts(self, node: str, facts: dict[str, Any]) -> None:
        peer = self._peers[node]
        is_first = not peer.facts
        peer.facts.update(facts)
        if not self._leadership.is_leader:
            return
        core = self._leadership.coordinator
        if is_first and (member := core.members.get(node)) is not None:
            memory, link = facts.get("memory_bytes"), facts.get("link_gbps")
            detail = {"rack": member.rack, "memory_bytes": memory, "link_gbps": link}
            self.log_event(Event(what="machine", node=node, detail=detail))

    def _feed(self, input: CoordinatorInput) -> None:
        self._driver.feed(input)
        if self._leadership.is_leader and not self._was_leader:
            self._became_leader()
            for feature in self._features:
                self._begin_leading(feature)
        self._was_leader = self._leadership.is_leader

    async def _examine(self, link: ServedLink, ask: Ask) -> None:
        """Agents take seconds for this, so the answer comes later than those of other commands."""
        link.send(await self.commands.examinations.examine(ask.arguments, self._facts()))

    # --- effects -----------------------------------------------------------------------------------------------------

    def _perform(self, effect: CoordinatorEffect) -> None:
        match effect:
            case ToAgent(node=node, term=term, message=message):
                if isinstance(message, Plan):
                    self._injections.planned(node, message)
                self._send_order(node, term, message)
            case Drop(node=node):
                peer = self._peers.pop(node, None)
                if peer is not None:
                    peer.link.abort()
            case Emit(event=event):
                self.log_event(event)
            case Finish(failed=failed, reason=reason):
                if not self._outcome.done():
                    self._log_progress()
                    self._log_bandwidth()
                    of_leader = self._leadership.is_leader
                    self._outcome.set_result(JobOutcome(failed=failed, reason=reason, of_leader=of_leader))
            case _ as never:
                assert_never(never)

    def _send_order(self, node: str, term: int, message: OrderMessage) -> None:
        """A message that goes to many nodes, one after the other, is encoded once."""
        if node in self._peers:
            if self._last_order[0] is not message or self._last_order[1] != term:
                self._last_order = (message, term, framed(Order(term=term, message=message)))
            self._peers[node].link.send_framed(self._last_order[2])

    def _send(self, node: str, message: Message) -> None:
        if node in self._peers:
            self._peers[node].link.send(message)

    def _log_bandwidth(self) -> None:
        if (event := bandwidth(self._facts())) is not None:
            self.log_event(event)

    def _log_progress(self) -> None:
        if self._leadership.is_leader and self._leadership.coordinator.members:
            self.log_event(self._progress.event(self._leadership.coordinator, self._facts()))

    def _facts(self) -> dict[str, dict[str, Any]]:
        return {node: peer.facts for node, peer in self._peers.items()}

    def log_event(self, event: Event) -> None:
        self._record(event.record(t=time.time()))

    def _record(self, record: dict[str, Any]) -> None:
        record.setdefault("t", time.time())
        self._log.write(record)
        self._heard(record)
        if record["what"] == "fault":
            self.commands.last_fault = record
        if self._prints_events:
            self._print(record)

    def _print(self, record: dict[str, Any]) -> None:
        line = self._console.line(record)
        if self._prints_json:
            print_record(**{"process": "coordinator", "text": line, **record})
        elif line is not None:
            print_line(f"[deadpool] {line}")
