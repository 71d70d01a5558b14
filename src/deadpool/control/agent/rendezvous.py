"""The key-value store in which the ranks of a generation meet. It runs in the agent of a survivor that the plan names.

torch's own TCPStore resolves the name of every peer that connects, and a slow name server then costs seconds in the
middle of a recovery; it also serves peers without the job's secret. This one does neither. Requests are
[operation, *arguments] in msgpack, answered in order per connection; `wait` is answered when all its keys are there.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgpack

from deadpool.errors import WireError
from deadpool.protocol.identity import Address
from deadpool.wire.codec import frame
from deadpool.wire.credentials import Credentials
from deadpool.wire.listener import AuthenticatedListener
from deadpool.wire.streams import payloads

LENGTH_LIMITS = {"max_array_len": 1 << 17, "max_map_len": 1 << 17}
"""msgpack takes memory for a list when it reads the length, before the items: enough for 100,000 ranks, no more."""


class RendezvousServer:
    def __init__(self, credentials: Credentials) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = asyncio.Event()  # replaced at each change, so that requests that wait check their keys again
        self._reception = AuthenticatedListener(credentials, "rendezvous", self._serve_link)

    async def start(self, host: str) -> Address:
        return await self._reception.start(host, 0)

    def clear(self) -> None:
        """The generation is over, and its keys are not needed any more."""
        self._values.clear()

    async def close(self) -> None:
        await self._reception.close()

    async def _serve_link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(WireError, OSError):  # a peer that is gone, or sends what is no request
            async for payload in payloads(reader):
                answer = await self._answer(*_request(payload))
                writer.write(frame(bytes(msgpack.packb(answer))))

    async def _answer(self, operation: str, arguments: list[Any]) -> Any:
        match operation, arguments:
            case "set", [str(key), bytes(value)]:
                return self._put(key, value)
            case "wait", [[*keys]] if _are_names(keys):
                while not all(key in self._values for key in keys):
                    await self._changed.wait()
                return [self._values[key] for key in keys]
            case "add", [str(key), int(amount)]:
                return self._add(key, amount)
            case "append", [str(key), bytes(value)]:
                return self._put(key, self._values.get(key, b"") + value)
            case "compare_set", [str(key), bytes(expected), bytes(desired)]:
                return self._compare_set(key, expected, desired)
            case "check", [[*keys]] if _are_names(keys):
                return all(key in self._values for key in keys)
            case "delete", [str(key)]:
                return self._values.pop(key, None) is not None
            case "count", []:
                return len(self._values)
            case _:
                raise WireError(f"{operation!r} is not a request of the rendezvous store")

    def _put(self, key: str, value: bytes) -> None:
        self._values[key] = value
        self._changed.set()
        self._changed = asyncio.Event()

    def _add(self, key: str, amount: int) -> int:
        try:
            total = int(self._values.get(key, b"0")) + amount
        except ValueError:
            raise WireError(f"{key!r} does not hold a number") from None
        self._put(key, str(total).encode())
        return total

    def _compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Compares and sets as TCPStore does: an absent key is set where nothing was expected."""
        present = self._values.get(key)
        if present is None and expected:
            return expected
        if present is None or present == expected:
            self._put(key, desired)
            return desired
        return present


def _request(payload: bytes) -> tuple[str, list[Any]]:
    try:
        operation, *arguments = msgpack.unpackb(payload, **LENGTH_LIMITS)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise WireError(f"not a request: {error}") from error
    return operation, arguments


def _are_names(keys: list[Any]) -> bool:
    return all(isinstance(key, str) for key in keys)
