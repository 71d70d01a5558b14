"""One node that is examined together with others: it answers the process that asks, and takes streams of the others.

Questions and answers are the messages of commands (Ask, Answer), on connections that prove the secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from deadpool.doctor import links
from deadpool.doctor.finding import Report
from deadpool.errors import VersionMismatch, WireError
from deadpool.protocol.identity import Address
from deadpool.protocol.messages import Answer, Ask
from deadpool.wire.control_link import ControlLink, connect
from deadpool.wire.credentials import Credentials
from deadpool.wire.listener import AuthenticatedListener

REACH_S = 3.0
_AT_ONCE = 64


class Responder:
    def __init__(self, report: Report, host: str, credentials: Credentials) -> None:
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
        share = await links.send(*link.streams)
        link.abort()
        return {"problem": "", "network_share": share}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A peer that only wants to know whether it reaches us says nothing."""
        link = ControlLink(reader, writer)
        with contextlib.suppress(StopAsyncIteration):
            first = await anext(link.messages())
            if isinstance(first, Ask) and first.what == "stream":
                self._received[str(first.arguments["from"])] = await links.receive(reader, writer)


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
