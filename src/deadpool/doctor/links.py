"""Links between nodes: which are measured, how, and which are too slow.

A `Responder` is one node that is examined together with others: it answers the process that asks, and takes streams of
the others. Questions and answers are the messages of commands (Ask, Answer), on connections that prove the secret.

`Link` and the functions beside it decide which nodes are paired to be measured, and which of the measured links are too
slow. A `Counter` counts how fast bytes pass from one node to another: one stream for a moment, where it arrives. It
finds a link that is broken or limited. It is no benchmark: one Python process at each end is the bound on a fast
network, and a busy processor on any. So the sender's kernel is asked how long the network was what held it up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import statistics
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from deadpool.doctor.finding import Facts, Finding, NodeReport, note
from deadpool.errors import VersionMismatch, WireError
from deadpool.protocol.identity import Address
from deadpool.protocol.messages import Answer, Ask
from deadpool.wire.control_link import ControlLink, connect
from deadpool.wire.credentials import Credentials
from deadpool.wire.listener import AuthenticatedListener

REACH_S = 3.0
_AT_ONCE = 64

LEAST_GBPS = 0.1
"""A network of 1 Gbit/s carries more."""
_SHARE_OF_USUAL = 0.2
_NETWORK_SHARE = 0.8
"""The share above which the network held a stream up: 0.9 and more was seen on limited links, 0.75 at most on busy
machines.
"""
_ALL_UP_TO = 64


class Responder:
    def __init__(self, report: NodeReport, host: str, credentials: Credentials) -> None:
        """`host` is where other nodes reach this one."""
        self._report, self._host, self._credentials = report, host, credentials
        self._received: dict[str, float] = {}  # GB/s by sender
        self._listener = AuthenticatedListener(credentials, "doctor", self._serve)

    async def start(self) -> Address:
        """Any free port, as agents take one: what keeps it out keeps them out."""
        return await self._listener.start(self._host, 0)

    async def close(self) -> None:
        await self._listener.close()

    async def respond(self, place: Address, own: Address, *, patience_s: float) -> int | None:
        """Returns the exit code that all nodes end with, or None if that broke off. Raises TimeoutError or WireError if
        the place cannot be reached."""
        link = await connect(place, self._credentials, patience_s=patience_s, purpose="doctor")
        try:
            arrival = {"host": own.host, "port": own.port, "report": self._report.to_json()}
            link.send(Ask(what="arrived", arguments=arrival))
            async for message in link.messages():
                if isinstance(message, Ask) and message.what == "end":
                    return int(message.arguments["code"])
                if isinstance(message, Ask):
                    arrived = time.time()
                    body = await self._answer(message)
                    link.send(Answer(body={**body, "arrived": arrived, "left": time.time()}))
            return None
        finally:
            link.abort()

    async def _answer(self, question: Ask) -> dict[str, Any]:
        match question.what:
            case "reach":
                return {"unreachable": await reach_all(question.arguments["peers"], self._credentials)}
            case "send":
                return await self._send(question.arguments)
            case "received":
                return {"gbps": self._received}
            case _:
                return {}

    async def _send(self, arguments: dict[str, Any]) -> dict[str, Any]:
        address = Address(host=arguments["host"], port=arguments["port"])
        try:
            link = await connect(address, self._credentials, patience_s=REACH_S, purpose="doctor")
        except (TimeoutError, WireError, OSError) as error:
            return {"problem": str(error) or "it cannot be reached"}
        link.send(Ask(what="stream", arguments={"from": arguments["from"]}))
        share = await send(*link.streams)
        link.abort()
        return {"problem": "", "network_share": share}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A peer that only wants to know whether it reaches us says nothing."""
        link = ControlLink(reader, writer)
        with contextlib.suppress(StopAsyncIteration):
            first = await anext(link.messages())
            if isinstance(first, Ask) and first.what == "stream":
                self._received[str(first.arguments["from"])] = await receive(reader, writer)


async def reach_all(peers: list[dict[str, Any]], credentials: Credentials) -> dict[str, str]:
    """Why, by node, for those that cannot be reached."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def reach(peer: dict[str, Any]) -> str:
        async with turns:
            try:
                address = Address(host=peer["host"], port=peer["port"])
                link = await connect(address, credentials, patience_s=REACH_S, purpose="doctor")
            except TimeoutError:
                return f"no answer within {REACH_S:g} s"
            except VersionMismatch as error:
                return str(error)
            except (WireError, OSError) as error:
                return str(error)
            link.abort()
            return ""

    answers = await asyncio.gather(*(reach(peer) for peer in peers))
    return {str(peer["node"]): why for peer, why in zip(peers, answers, strict=True) if why}


@dataclass(frozen=True, slots=True)
class Link:
    source: str
    target: str
    gbps: float
    network_share: float = 1.0  # of the time, in which the network was what held it up

    def facts(self) -> Facts:
        return {
            "from": self.source,
            "to": self.target,
            "gbps": round(self.gbps, 4),
            "network_share": round(self.network_share, 2),
        }


def peers_of(index: int, count: int) -> list[int]:
    """Whom a node has to reach: all others, and in a large job some near and some far."""
    if count <= _ALL_UP_TO:
        return [other for other in range(count) if other != index]
    distances = [2**power for power in range(count.bit_length()) if 2**power < count]
    return sorted({(index + sign * distance) % count for distance in distances for sign in (1, -1)} - {index})


def ring(count: int) -> list[list[tuple[int, int]]]:
    """Rounds of pairs (source, target), in each of which a node sends once and receives once."""
    if count < 2:
        return []
    forward = [(index, (index + 1) % count) for index in range(count)]
    return [forward] if count == 2 else [forward, [(target, source) for source, target in forward]]


def slow_links(links: Sequence[Link], least_gbps: float) -> list[Finding]:
    """A link that was slow because a machine was busy is worth a note only."""
    return [_slow(link, _usual(links), least_gbps) for link in too_slow(links, least_gbps)]


def too_slow(links: Sequence[Link], least_gbps: float) -> list[Link]:
    bound = max(least_gbps, _SHARE_OF_USUAL * _usual(links))
    return [link for link in links if link.gbps < bound]


def _usual(links: Sequence[Link]) -> float:
    return statistics.median([link.gbps for link in links]) if links else 0.0


def _slow(link: Link, usual: float, least_gbps: float) -> Finding:
    bound = f"less than {least_gbps:g} GB/s" if link.gbps < least_gbps else f"the others reach {usual:.2f} GB/s"
    what = f"bytes pass from {link.source} to {link.target} at {link.gbps:.3f} GB/s: {bound}"
    if link.network_share < _NETWORK_SHARE:
        busy = f"{what}; its network was not what held it up"
        return note("bandwidth", busy, "ask again when both machines have a free processor").at(link.source)
    do = "look at its cable, switch port, duplex and limits (ethtool, tc), or give the --interface of the fast network"
    return Finding(check="bandwidth", node=link.source, what=what, do=do)


STREAM_S = 0.3
_PIECE_BYTES = 1 << 20
_LATE_S = 2.0  # for the first byte
_LOOK_S = 0.02
_ESTABLISHED = 1  # the state of a TCP connection, the first byte of struct tcp_info
_TIMES = struct.Struct("=3Q")  # microseconds: busy, held up by the receiver, held up by the sender's own buffer
_TIMES_OFFSET = 168  # in struct tcp_info, from Linux 4.10 on


class Counter(asyncio.Protocol):
    """Counts what arrives, from the first bytes on."""

    def __init__(self) -> None:
        self._began, self._newest, self._first, self._total = 0.0, 0.0, 0, 0
        self.has_begun, self.has_ended = asyncio.Event(), asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self._newest = time.monotonic()
        if not self._total:
            self._began, self._first = self._newest, len(data)  # their time was before
            self.has_begun.set()
        self._total += len(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.has_ended.set()

    @property
    def gbps(self) -> float:
        seconds = self._newest - self._began
        return (self._total - self._first) / seconds / 1e9 if seconds > 0 else 0.0


async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float = STREAM_S) -> float:
    """GB/s of what comes on this connection within that time. The caller ends the connection."""
    counter = Counter()
    transport = cast(asyncio.Transport, writer.transport)
    transport.set_protocol(counter)
    transport.resume_reading()  # the reader stops it when much has come early
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LATE_S):
            await counter.has_begun.wait()
        async with asyncio.timeout(seconds):
            await counter.has_ended.wait()
    return counter.gbps


async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
    """Sends until the receiver has enough and hangs up, or its time is over. It returns the share of the time in which
    the network held the bytes up; 1 where the kernel does not say."""
    watch = _NetworkShare(writer.get_extra_info("socket"))
    watching = asyncio.ensure_future(watch.run())
    piece, deadline = os.urandom(_PIECE_BYTES), time.monotonic() + _LATE_S + STREAM_S
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_LATE_S + STREAM_S):
            while not (writer.is_closing() or reader.at_eof() or time.monotonic() > deadline):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)  # drain does not wait on a TLS connection whose end is not noticed yet
    watching.cancel()
    return watch.share


class _NetworkShare:
    """Bytes wait for the network while the kernel has some to send and neither the receiver nor a buffer is full.

    The kernel is asked all the time: a sender may wait in one call until the end, and a connection that has ended tells
    nothing any more."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._began = sock, time.monotonic()
        self.share = 1.0

    async def run(self) -> None:
        while True:
            with contextlib.suppress(OSError, struct.error):
                told = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TIMES_OFFSET + _TIMES.size)
                busy, by_receiver, by_buffer = _TIMES.unpack_from(told, _TIMES_OFFSET)
                if told[0] == _ESTABLISHED and busy:
                    self.share = (busy - by_receiver - by_buffer) / 1e6 / (time.monotonic() - self._began)
            await asyncio.sleep(_LOOK_S)
