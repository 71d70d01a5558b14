"""All nodes of a job are examined together before there is a job: one process asks all of them, and finds what only
several nodes together show.

All of them get the same HOST:PORT, and the one that it belongs to asks. So the same command works under srun, kubectl
and ssh: nothing has to be known of the nodes but one address.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from deadpool.doctor.clock import apart, compare, offset_s
from deadpool.doctor.finding import SAME_SECRET, Finding, NodeReport, Result, note, unknown
from deadpool.doctor.links import REACH_S, Link, Responder, peers_of, ring, slow_links, too_slow
from deadpool.errors import ConfigError, VersionMismatch, WireError, WrongSecret
from deadpool.protocol.identity import Address
from deadpool.protocol.messages import Answer, Ask
from deadpool.wire.control_link import ControlLink
from deadpool.wire.credentials import Credentials
from deadpool.wire.listener import AuthenticatedListener, RefusedPeer

_ELSEWHERE = (errno.EADDRNOTAVAIL, errno.EADDRINUSE)
"""The place is another machine, or another process of this one asks the nodes."""
_HOLD_S = 60.0  # beyond the wait for nodes: far longer than all questions take

_ANSWER_S = 2 * REACH_S + 4.0
_CLOCK_TRIES = 3
_SECOND_LOOKS = 8


async def examine_together(
    report: NodeReport,
    place: Address,
    *,
    count: int,
    host: str,
    credentials: Credentials,
    wait_s: float,
    least_gbps: float,
) -> tuple[Result | None, int]:
    """What was found, and the exit code. None: the place tells what was found."""
    place = _resolved(place)
    check = JointCheck(report.node, count, credentials, wait_s=wait_s, least_gbps=least_gbps)
    asks = await _begin(check, place)
    responder = Responder(report, host, credentials)
    try:
        own = await responder.start()
        responding = asyncio.ensure_future(_respond(responder, place, own, report, wait_s))
        try:
            if not asks:
                return await responding
            result = await check.run()
            return result, int(result.code)
        finally:
            responding.cancel()
            await asyncio.gather(responding, return_exceptions=True)
    finally:
        await responder.close()
        await check.close()


async def _begin(check: JointCheck, place: Address) -> bool:
    try:
        await check.start(place)
    except OSError as error:
        if error.errno in _ELSEWHERE:
            return False
        raise ConfigError(f"rendezvous={place} cannot be used: {error.strerror}; give another port") from error
    return True


async def _respond(
    responder: Responder, place: Address, own: Address, report: NodeReport, wait_s: float
) -> tuple[Result | None, int]:
    try:
        async with asyncio.timeout(2 * wait_s + _HOLD_S):
            code = await responder.respond(place, own, patience_s=wait_s)
    except VersionMismatch as error:
        return _alone(report, Finding(check="versions", what=error.found, do=error.cure))
    except TimeoutError:
        do = f"let this node reach port {place.port} of {place.host}, and see that the doctor runs there"
        return _alone(report, Finding(check="ports", what=f"{place} does not answer", do=do))
    except WireError as error:
        return _alone(report, Finding(check="secret", what=str(error), do=SAME_SECRET))
    if code is None:
        return _alone(report, unknown("ports", f"the examination by {place} broke off", "look at the output there"))
    return None, code


def _alone(report: NodeReport, finding: Finding) -> tuple[Result, int]:
    result = Result.of([report], [finding.at(report.node)])
    return result, int(result.code)


def _resolved(place: Address) -> Address:
    try:
        found = socket.getaddrinfo(place.host, place.port, socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            f"rendezvous={place} cannot be used: {error.strerror}; give HOST:PORT of one of the nodes"
        ) from error
    return Address(host=str(found[0][4][0]), port=place.port)


@dataclass(slots=True)
class ExaminedNode:
    """One node, as the process that asks sees it."""

    link: ControlLink
    report: NodeReport
    address: Address
    answers: asyncio.Queue[Answer | None] = field(default_factory=asyncio.Queue)
    gone: bool = False

    @property
    def node(self) -> str:
        return self.report.node

    def as_peer(self) -> dict[str, Any]:
        return {"node": self.node, "host": self.address.host, "port": self.address.port}


class JointCheck:
    def __init__(self, node: str, count: int, credentials: Credentials, *, wait_s: float, least_gbps: float) -> None:
        """`node` is the one that asks."""
        self._node = node
        self._count, self._wait_s, self._least_gbps = count, wait_s, least_gbps
        self._listener = AuthenticatedListener(credentials, "doctor", self._serve, self._refused)
        self._peers: list[ExaminedNode] = []
        self._complete = asyncio.Event()
        self._findings: list[Finding] = []

    async def start(self, place: Address) -> None:
        """Raises OSError if the place is taken, or on another machine."""
        await self._listener.start(place.host, place.port)

    async def close(self) -> None:
        await self._listener.close()

    async def run(self) -> Result:
        try:
            async with asyncio.timeout(self._wait_s):
                await self._complete.wait()
        except TimeoutError:
            self._findings.append(self._missing())
        self._peers.sort(key=lambda peer: peer.node)
        await self._clocks()
        await self._reach()
        links = await self._speeds()
        await self._listener.stop_listening()  # tells of refusals that were not told yet
        reports = [peer.report for peer in self._peers]
        findings = [
            *(each.at(self._node) for each in self._findings),
            *compare(reports),
            *slow_links(links, self._least_gbps),
        ]
        result = Result.of(reports, findings, [link.facts() for link in links])
        for peer in self._peers:
            peer.link.send(Ask(what="end", arguments={"code": int(result.code)}))
        await asyncio.gather(*(peer.link.close() for peer in self._peers))
        return result

    # --- who comes ---------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = ControlLink(reader, writer)
        peer: ExaminedNode | None = None
        async for message in link.messages():
            if peer is None and isinstance(message, Ask) and message.what == "arrived":
                peer = self._welcome(link, message.arguments)
            elif peer is not None and isinstance(message, Answer):
                peer.answers.put_nowait(message)
        if peer is not None:
            peer.gone = True
            peer.answers.put_nowait(None)

    def _welcome(self, link: ControlLink, arguments: dict[str, Any]) -> ExaminedNode:
        report = NodeReport.from_json(arguments["report"])
        names = {peer.node for peer in self._peers}
        name, number = report.node, 2
        while name in names:
            name, number = f"{report.node}#{number}", number + 1
        findings = tuple(Finding.from_json({**each.to_json(), "node": name}) for each in report.findings)
        address = Address(host=str(arguments["host"]), port=int(arguments["port"]))
        peer = ExaminedNode(link, NodeReport(node=name, facts=report.facts, findings=findings), address)
        self._peers.append(peer)
        if len(self._peers) >= self._count:
            self._complete.set()
        return peer

    def _refused(self, refused: RefusedPeer, count: int) -> None:
        """A probe of the port is none of ours: only a node that was meant to come is a finding."""
        match refused.error:
            case VersionMismatch(found=found, cure=cure):
                what = f"peer {refused.peer} is refused: {found}"
                self._findings.append(Finding(check="versions", what=what, do=cure))
            case WrongSecret():
                self._findings.append(Finding(check="secret", what=refused.sentence, do=SAME_SECRET))
            case _:
                do = "find out what connects to this port, or ignore it"
                self._findings.append(note("ports", refused.sentence, do))

    def _missing(self) -> Finding:
        came = ", ".join(sorted(peer.node for peer in self._peers)) or "none"
        what = f"{len(self._peers)} of {self._count} nodes came within {self._wait_s:g} s: {came}"
        do = "look at what the doctor says on those that did not come: they must reach this port"
        return Finding(check="ports", what=what, do=do)

    # --- what is asked -----------------------------------------------------------------------------------------------

    async def _ask(self, peer: ExaminedNode, what: str, **arguments: Any) -> dict[str, Any] | None:
        """None: it is gone, or does not answer."""
        if peer.gone:
            return None
        peer.link.send(Ask(what=what, arguments=arguments))
        answer: Answer | None = None
        try:
            async with asyncio.timeout(_ANSWER_S):
                answer = await peer.answers.get()
        except TimeoutError:
            peer.link.abort()
        if answer is None:
            peer.gone = True
            found = unknown(
                "ports", f"it left while it was asked to {what}", "run the doctor again; look at its output"
            )
            self._findings.append(found.at(peer.node))
            return None
        return answer.body

    async def _clocks(self) -> None:
        """Relative to the median, so that it does not matter whose clock is wrong."""
        measured = await asyncio.gather(*(self._clock(peer) for peer in self._peers))
        known = {peer.node: each for peer, each in zip(self._peers, measured, strict=True) if each is not None}
        if len(known) < 2:
            return
        middle = statistics.median_low(ahead for ahead, _ in known.values())
        for node, (ahead, error) in known.items():
            self._findings += apart(node, ahead - middle, error, "the other nodes")

    async def _clock(self, peer: ExaminedNode) -> tuple[float, float] | None:
        found = []
        for _ in range(_CLOCK_TRIES):
            sent = time.time()
            if (body := await self._ask(peer, "clock")) is None:
                return None
            found.append(offset_s(sent, body["arrived"], body["left"], time.time()))
        return min(found, key=lambda each: each[1])

    async def _reach(self) -> None:
        async def ask(index: int) -> None:
            peer = self._peers[index]
            peers = [self._peers[other].as_peer() for other in peers_of(index, len(self._peers))]
            body = await self._ask(peer, "reach", peers=peers) if peers else None
            for node, why in (body or {"unreachable": {}})["unreachable"].items():
                address = next(each.address for each in self._peers if each.node == node)
                what = f"it does not reach node {node} at {address.host}, port {address.port}: {why}"
                do = "let nodes of the job reach each other on all TCP ports above 1024, or give another --interface"
                self._findings.append(Finding(check="ports", node=peer.node, what=what, do=do))

        await asyncio.gather(*(ask(index) for index in range(len(self._peers))))

    async def _speeds(self) -> list[Link]:
        """Each node sends to the next and to the one before, all at once as copies do; a slow link gets a second look
        while the others rest."""
        links: dict[tuple[str, str], Link] = {}
        for pairs in ring(len(self._peers)):
            links |= await self._streams([(self._peers[a], self._peers[b]) for a, b in pairs])
        peers = {peer.node: peer for peer in self._peers}
        for link in too_slow(list(links.values()), self._least_gbps)[:_SECOND_LOOKS]:
            again = await self._streams([(peers[link.source], peers[link.target])])
            links |= {pair: max(each, links[pair], key=lambda one: one.gbps) for pair, each in again.items()}
        return list(links.values())

    async def _streams(self, pairs: Sequence[tuple[ExaminedNode, ExaminedNode]]) -> dict[tuple[str, str], Link]:
        sent = await asyncio.gather(
            *(self._ask(source, "send", **{**target.as_peer(), "from": source.node}) for source, target in pairs)
        )
        links = {}
        for (source, target), body in zip(pairs, sent, strict=True):
            if body is not None and not body["problem"]:  # what cannot be reached was told before
                told = await self._ask(target, "received") or {"gbps": {}}
                if source.node in told["gbps"]:
                    rate, share = float(told["gbps"][source.node]), float(body["network_share"])
                    links[source.node, target.node] = Link(source.node, target.node, rate, share)
        return links
