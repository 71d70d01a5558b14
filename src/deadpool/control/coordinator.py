"""The coordinator process: an asyncio shell around the core. Feed, carry out effects, re-arm the timer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from deadpool.control.colleagues import DISMISS
from deadpool.control.departures import DepartureDesk
from deadpool.control.many_links import BACKLOG
from deadpool.control.rhythm import Rhythm
from deadpool.control.status import describe
from deadpool.control.strikes import StrikeDesk
from deadpool.errors import WireError
from deadpool.events import EventLog
from deadpool.protocol.effects import (
    CoordinatorEffect,
    CoordinatorInput,
    Drop,
    Emit,
    Finish,
    FromAgent,
    LinkLost,
    Stalled,
    StopAsked,
    Tick,
    ToAgent,
)
from deadpool.protocol.messages import Answer, Ask, Facts, Join, Order, Plan, Refused, Report
from deadpool.protocol.office import Office
from deadpool.protocol.topology import Address
from deadpool.strikes import StrikeOrder
from deadpool.wire.control_link import ControlLink, authenticated, framed

STALL_S = 0.1  # a timer that fires later than this means that this process did not run


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    failed: bool
    reason: str
    in_office: bool  # else it is not the job's outcome, only this process's


@dataclass(slots=True)
class Peer:
    link: ControlLink
    incarnation: str
    facts: dict[str, Any] = field(default_factory=dict)


class CoordinatorServer:
    def __init__(
        self,
        office: Office,
        *,
        secret: bytes,
        log: EventLog,
        orders: list[StrikeOrder],
        took_office: Callable[[], None],
        narrate: bool = True,
    ) -> None:
        """`took_office` is called when it becomes the coordinator, also at the start if it founds the job."""
        self._office, self._secret, self._log, self._narrate = office, secret, log, narrate
        self._took_office, self._was_in_office = took_office, False
        self._peers: dict[str, Peer] = {}
        self._said: tuple[Any, int, bytes] = (None, 0, b"")  # the last order: message, term, as it travels
        self._strikes = StrikeDesk(lambda: office.coordinator, orders, send=self._send, record=self._record)
        self._departures = DepartureDesk(lambda: office.coordinator, feed=self._feed)
        self._server: asyncio.Server | None = None
        self._rhythm = Rhythm(office, perform=self._perform, wake=_woken)
        self._outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._conversations: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> Address:
        self._server = await asyncio.start_server(self._welcome, host, port, backlog=BACKLOG)
        bound = self._server.sockets[0].getsockname()
        return Address(host=host, port=bound[1])

    def open(self) -> None:
        """From here on it may be in office."""
        self._feed(Tick())

    async def wait(self) -> Outcome:
        return await asyncio.shield(self._outcome)

    def stop(self, reason: str) -> None:
        self._feed(StopAsked(reason=reason))

    async def close(self) -> None:
        """Everybody hears the last words before the links close."""
        self._rhythm.stop()
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*(self._farewell(peer.link) for peer in list(self._peers.values())))
        for conversation in list(self._conversations):
            conversation.cancel()
        await asyncio.gather(*self._conversations, return_exceptions=True)

    async def _farewell(self, link: ControlLink) -> None:
        """Agents leave on their own after a Shutdown; who does not is cut off."""
        try:
            async with asyncio.timeout(5.0):
                while any(peer.link is link for peer in self._peers.values()):
                    await asyncio.sleep(0.01)
        except TimeoutError:
            await link.close()

    # --- inputs ------------------------------------------------------------------------------------------------------

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._conversations.add(task)
        try:
            await self._converse(await authenticated(reader, writer, self._secret, "server"))
        except WireError as error:
            self._record({"what": "refused", "reason": str(error)})
        except asyncio.CancelledError:
            return  # only close() does that; asyncio's own callback would print a traceback about it
        finally:
            self._conversations.discard(task)

    async def _converse(self, link: ControlLink) -> None:
        node: str | None = None
        async for message in link.messages():
            match message:
                case Ask():
                    link.send(self._answer(message))
                case Join() if node is None and self._is_another(message):
                    refused = Refused(reason=f"a node named {message.node} is in the job already")
                    link.send(Order(term=self._office.term, message=refused))
                case Join() if node is None:
                    node = message.node
                    self._supersede(node)
                    self._peers[node] = Peer(link, message.incarnation)
                    self._feed(FromAgent(node=node, message=message))
                    self._strikes.joined(node)
                case _ if node is not None and self._is_current(node, link):
                    self._hear(node, message)
        if node is not None and self._is_current(node, link):
            del self._peers[node]
            self._feed(LinkLost(node=node, reason=link.lost_reason))
        link.abort()

    def _is_current(self, node: str, link: ControlLink) -> bool:
        return node in self._peers and self._peers[node].link is link

    def _is_another(self, join: Join) -> bool:
        return join.node in self._peers and self._peers[join.node].incarnation != join.incarnation

    def _supersede(self, node: str) -> None:
        """The agent calls again: it has given up its last link, whatever we have heard of that."""
        if (peer := self._peers.pop(node, None)) is not None:
            peer.link.abort()
            self._feed(LinkLost(node=node, reason="the agent called again"))

    def _hear(self, node: str, message: Any) -> None:
        match message:
            case Report(records=records):
                for record in records:
                    self._record(record)
            case Facts(facts=facts):
                self._peers[node].facts.update(facts)
            case _:
                self._feed(FromAgent(node=node, message=message))

    def _feed(self, input: CoordinatorInput) -> None:
        self._rhythm.feed(input)
        if self._office.in_office and not self._was_in_office:
            self._took_office()
        self._was_in_office = self._office.in_office

    # --- effects -----------------------------------------------------------------------------------------------------

    def _perform(self, effect: CoordinatorEffect) -> None:
        match effect:
            case ToAgent(node=node, term=term, message=message):
                if isinstance(message, Plan):
                    self._strikes.planned(node, message)
                self._tell(node, term, message)
            case Drop(node=node):
                peer = self._peers.pop(node, None)
                if peer is not None:
                    peer.link.abort()
            case Emit(event=event):
                self._record(event.record(t=time.time()))
            case Finish(failed=failed, reason=reason):
                if not self._outcome.done():
                    in_office = self._office.in_office
                    self._outcome.set_result(Outcome(failed=failed, reason=reason, in_office=in_office))

    def _tell(self, node: str, term: int, message: Any) -> None:
        """What is said to many, one after the other, is made into bytes once."""
        if node in self._peers:
            if self._said[0] is not message or self._said[1] != term:
                self._said = (message, term, framed(Order(term=term, message=message)))
            self._peers[node].link.send_framed(self._said[2])

    def _send(self, node: str, message: Any) -> None:
        if node in self._peers:
            self._peers[node].link.send(message)

    def _record(self, record: dict[str, Any]) -> None:
        record.setdefault("t", time.time())
        self._log.write(record)
        if self._narrate and (line := _narration(record)):
            print(f"[deadpool] {line}", flush=True)

    # --- commands ----------------------------------------------------------------------------------------------------

    def _answer(self, ask: Ask) -> Answer:
        if ask.what == DISMISS and not self._office.in_office:
            self.stop(str(ask.arguments.get("reason")))
            return Answer(body={})
        if not self._office.in_office:
            return Answer(body={}, error="this coordinator is not in office; its run folder says who is")
        match ask.what:
            case "status":
                facts = {node: peer.facts for node, peer in self._peers.items()}
                return Answer(body=describe(self._office.coordinator, facts))
            case "kill":
                return self._strikes.order(ask.arguments)
            case "drain":
                return self._departures.drain(ask.arguments)
            case "replace":
                return self._departures.replace_straggler()
            case "stop":
                self.stop("asked to stop")
                return Answer(body={})
            case _:
                known = "status, kill, drain, replace or stop"
                return Answer(body={}, error=f"{ask.what!r} is not a question: ask for {known}")


def _woken(late_s: float) -> Tick | Stalled:
    """Rule 20: a stall of our own is nobody else's silence."""
    return Stalled(seconds=late_s) if late_s > STALL_S else Tick()


_TOLD = {
    "joined": "node {node} joined",
    "armed": "armed: signal {signal} for node {node} {when}",
    "ambush": "ambush: rank {rank} has reached {at}, signal {signal}",
    "ambush_missed": "ambush MISSED: {at} did not come to rank {rank} when it was due",
    "took_over": "coordinator of term {term}: nodes {nodes} are here",
    "let_go": "no longer coordinator of term {term}: {reason}",
    "no_majority": "NO MAJORITY: {reason}",
    "isolated": "node {node} ended its trainers: {reason}",
    "fault": "FAULT {reason} (ranks {ranks})",
    "planned": "plan: seats {seats}, resume at step {step}",
    "same_rack": "copies of nodes {nodes} lie in their own rack: no other has room for them",
    "replicas_differ": "REPLICAS DIFFER: at version {step} ranks {ranks} hold what no peer on another node has",
    "interval": "from version {from} on a snapshot every {every} steps: {reason}",
    "waiting": "WAITING: {reason}; add one with: deadpool agent --join",
    "go": "go: generation {generation}",
    "protected": "protected again at version {step}",
    "no_plan": "NO PLAN: {reason}",
    "spare_lost": "spare {node} is lost: {reason}",
    "no_spare": "NO SPARE: {reason}; add one with: deadpool agent --spare --join",
    "drain": "node {node} is drained ({reason}): node {heir} gets ready for ranks {ranks}",
    "handover": "all ranks stand at version {step}: those of node {node} move, and nothing is done again",
    "drain_failed": "node {node} STAYS: {reason}",
    "drain_refused": "node {node} cannot be drained: {reason}",
    "left": "node {node} leaves: {reason}",
    "straggler": "SLOW: node {node} {reason}",
    "straggler_over": "node {node} is as fast as the others again",
    "trainer_lost": "trainer {trainer} ended: {reason}",
    "rehearsed": "spare trainer {trainer} is warm for rank {rank}",
    "slow_start": "no step for {seconds} s: behind are ranks {ranks}; no hang is seen before the first step",
    "paused": "rank {rank} pauses: {reason}",
    "hung": "HUNG: rank {rank} on node {node} {found}; a fresh process takes its place",
    "nobody_hung": "{reason}",
    "quarantined": "QUARANTINED: node {node}: {reason}; its ranks go to a spare",
    "not_quarantined": "node {node} should be quarantined ({reason}), but there is no spare: it goes on; add one with: "
    "deadpool agent --join",
    "returned": "node {node} is back and a spare; it had copies {copies}",
    "hoping": "WAITING: {reason}",
    "spoilt": "SPOILT: the copy of rank {rank} at version {step} on node {node} is not as it was sealed",
    "no_progress": "NO PROGRESS at step {step}: {faults}",
    "salvaging": "writing what is left of version {step} to disk on nodes {nodes}",
    "device_lost": "DEVICE LOST by rank {rank}: {reason}",
    "failed": "FAILED: {reason}",
    "completed": "completed: {reason}",
}


def _narration(record: dict[str, Any]) -> str | None:
    template = _TOLD.get(record["what"])
    if template is None:
        return None
    try:
        return template.format(**record)
    except KeyError:
        return str(record["what"])
