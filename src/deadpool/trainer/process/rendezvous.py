"""The client of an agent's rendezvous store, as a torch.distributed Store."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import msgpack
import torch.distributed as dist

from deadpool.errors import WireError
from deadpool.protocol.identity import Address
from deadpool.wire.credentials import Credentials
from deadpool.wire.streams import BlockingLink

_CONNECT_S = 10.0


class RendezvousStore(dist.Store):
    """Keeps its keys under `prefix`, so that generations do not see each other's. A wait ends at the timeout, or when
    the agent is lost."""

    def __init__(self, address: Address, credentials: Credentials, prefix: str, timeout: timedelta) -> None:
        super().__init__()
        self._address, self._credentials, self._prefix, self._timeout = address, credentials, prefix, timeout
        self._lock = threading.Lock()
        self._link = BlockingLink(address, credentials, "rendezvous", timeout_s=_CONNECT_S)

    def __del__(self) -> None:
        """Closes the connection with the last reference: torch does not close its stores, and it would leak."""
        link = getattr(self, "_link", None)  # None: the constructor failed
        if link is not None:
            link.close()

    def clone(self) -> RendezvousStore:
        return RendezvousStore(self._address, self._credentials, self._prefix, self._timeout)

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def set(self, key: str, value: bytes | str) -> None:
        self._request("set", self._name(key), _bytes(value))

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._wait(keys, self._timeout)

    def multi_set(self, keys: list[str], values: list[bytes | str]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._wait(keys, timeout or self._timeout)

    def add(self, key: str, amount: int) -> int:
        total: int = self._request("add", self._name(key), amount)
        return total

    def append(self, key: str, value: bytes | str) -> None:
        self._request("append", self._name(key), _bytes(value))

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        found: bytes = self._request("compare_set", self._name(key), _bytes(expected), _bytes(desired))
        return found

    def check(self, keys: list[str]) -> bool:
        are_there: bool = self._request("check", [self._name(key) for key in keys])
        return are_there

    def delete_key(self, key: str) -> bool:
        was_there: bool = self._request("delete", self._name(key))
        return was_there

    def num_keys(self) -> int:
        count: int = self._request("count")
        return count

    def has_extended_api(self) -> bool:
        return True

    def _wait(self, keys: list[str], timeout: timedelta) -> list[bytes]:
        names, limit_s = [self._name(key) for key in keys], timeout.total_seconds()
        values: list[bytes] = self._request("wait", names, timeout_s=limit_s)
        return values

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _request(self, *request: Any, timeout_s: float = _CONNECT_S) -> Any:
        with self._lock:
            try:
                self._link.send(bytes(msgpack.packb(request)))
                return msgpack.unpackb(self._link.receive(timeout_s))
            except (OSError, WireError) as error:
                self._link.close()  # a late answer must not be taken for that of the next request
                raise dist.DistStoreError(f"rendezvous at {self._address}, {request[0]}: {error}") from error


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
