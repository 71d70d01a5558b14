"""The rendezvous store of this process's groups, whose connection can be closed while a backend still holds the store.

A replaced gloo backend may live on for a while and keeps the store that it was made with: with a plain TCPStore each
recovery would leave one connection open. ReleasableStore forwards to a client of its own, and release() drops it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from deadpool.backend.supervisor import Supervisor
from deadpool.errors import GroupError


class ReleasableStore(dist.Store):
    """Forwards every call to `inner` until it is released.

    A clone that C++ asks for is also kept here: C++ holds only the C++ half of it, and Python would free the half that
    has these methods.
    """

    def __init__(self, inner: dist.Store) -> None:
        super().__init__()
        self._inner: Any = inner
        self._clones: list[ReleasableStore] = []

    def release(self) -> None:
        """Drops the client; every later call raises GroupError."""
        self._inner = None
        for clone in self._clones:
            clone.release()

    def _client(self) -> Any:
        inner = self._inner
        if inner is None:
            raise GroupError("this store belonged to groups that were rebuilt or destroyed")
        return inner

    def clone(self) -> dist.Store:
        clone = ReleasableStore(self._client().clone())
        self._clones.append(clone)
        return clone

    @property
    def timeout(self) -> timedelta:
        timeout: timedelta = self._client().timeout
        return timeout


def _forwarding(method: str) -> Callable[..., Any]:
    def forward(self: ReleasableStore, *arguments: Any) -> Any:
        return getattr(self._client(), method)(*arguments)

    forward.__name__ = method
    return forward


# When C++ calls the store, it looks some of these methods up under their C++ names.
_CPP_NAMES = {"delete_key": "deleteKey", "num_keys": "getNumKeys", "compare_set": "compareSet"}

for _method in (
    *("set", "get", "add", "wait", "check", "append", "compare_set", "delete_key", "num_keys", "list_keys"),
    *("multi_get", "multi_set", "queue_push", "queue_pop", "queue_len", "has_extended_api", "set_timeout"),
):
    setattr(ReleasableStore, _method, _forwarding(_method))
    setattr(ReleasableStore, _CPP_NAMES.get(_method, _method), _forwarding(_method))


class StoreConnection:
    """This process's own client of the rendezvous store, replaced at every rebuild.

    With a client of its own an abort can end a wait in the store without cutting any other process off from it.
    """

    def __init__(self, supervisor: Supervisor, timeout_s: float) -> None:
        self._supervisor, self._timeout_s = supervisor, timeout_s
        self.current: ReleasableStore | None = None

    def connect(self, store: Any) -> ReleasableStore:
        self._release()
        client = self._supervisor.run("connecting to the store", store.clone, wait_s=self._timeout_s)
        self.current = ReleasableStore(client)
        return self.current

    def _release(self) -> None:
        if self.current is not None:
            self.current.release()
            self.current = None
