"""Where the ranks of a generation meet: a small key-value store in the agent of a survivor that the plan names.

torch's own TCPStore resolves the name of every peer that connects, and a slow name server then costs seconds in the
middle of a recovery; it also takes anybody in. This one does neither. Requests are [operation, *arguments] in msgpack,
answered in order per connection; `wait` is answered when all its keys are there.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgpack

from deadpool.errors import WireError
from deadpool.protocol.topology import Address
from deadpool.wire.control_link import authenticate
from deadpool.wire.framing import Framer, frame


class RendezvousServer:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._values: dict[str, bytes] = {}
        self._changed = asyncio.Event()  # replaced at each change: whoever waits looks again
        self._server: asyncio.Server | None = None
        self._visits: set[asyncio.Task[None]] = set()

    async def start(self, host: str) -> Address:
        self._server = await asyncio.start_server(self._visit, host, 0)
        return Address(host=host, port=self._server.sockets[0].getsockname()[1])

    def clear(self) -> None:
        """A generation is over, and nobody will ask for what it left here."""
        self._values.clear()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for visit in list(self._visits):
            visit.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._visits.add(task)
        try:
            await authenticate(reader, writer, self._secret, "server")
            await self._serve(reader, writer)
        except (WireError, OSError, ValueError):
            pass  # a stranger, or a visitor that is gone
        finally:
            self._visits.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        framer = Framer()
        while data := await reader.read(1 << 18):
            for payload in framer.feed(data):
                operation, *arguments = msgpack.unpackb(payload)
                answer = await self._answer(operation, arguments)
                writer.write(frame(bytes(msgpack.packb(answer))))

    async def _answer(self, operation: str, arguments: list[Any]) -> Any:
        match operation, arguments:
            case "set", [key, value]:
                return self._put(key, value)
            case "wait", [keys]:
                while not all(key in self._values for key in keys):
                    await self._changed.wait()
                return [self._values[key] for key in keys]
            case "add", [key, amount]:
                total = int(self._values.get(key, b"0")) + amount
                self._put(key, str(total).encode())
                return total
            case "append", [key, value]:
                return self._put(key, self._values.get(key, b"") + value)
            case "compare_set", [key, expected, desired]:
                return self._compare_set(key, expected, desired)
            case "check", [keys]:
                return all(key in self._values for key in keys)
            case "delete", [key]:
                return self._values.pop(key, None) is not None
            case "count", []:
                return len(self._values)
            case _:
                raise WireError(f"{operation!r} is not a request")

    def _put(self, key: str, value: bytes) -> None:
        self._values[key] = value
        self._changed.set()
        self._changed = asyncio.Event()

    def _compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """As TCPStore does: an absent key is set where nothing was expected."""
        present = self._values.get(key)
        if present is None and expected:
            return expected
        if present is None or present == expected:
            self._put(key, desired)
            return desired
        return present
