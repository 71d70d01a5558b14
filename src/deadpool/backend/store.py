"""A rendezvous store that can be let go.

A replaced gloo backend may live on for a while, and keeps the store it was made with: with a plain TCPStore that is
one connection per recovery. This store forwards to a client of its own, and release() closes that client.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from deadpool.errors import GroupError


class ReleasableStore(dist.Store):
    """Forwards every call to `inner` until it is released.

    What C++ clones is kept here: it holds the C++ half of a store only, and the half with these methods would go.
    """

    def __init__(self, inner: dist.Store) -> None:
        super().__init__()
        self._inner: Any = inner
        self._clones: list[ReleasableStore] = []

    def release(self) -> None:
        """Lets go of the client; whoever still asks gets a GroupError."""
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
        return self._client().timeout


def _forwarding(method: str) -> Callable[..., Any]:
    def forward(self: ReleasableStore, *arguments: Any) -> Any:
        return getattr(self._client(), method)(*arguments)

    forward.__name__ = method
    return forward


# torch looks some of these up under their C++ name when it is the one who calls.
_CPP_NAMES = {"delete_key": "deleteKey", "num_keys": "getNumKeys", "compare_set": "compareSet"}

for _method in (
    *("set", "get", "add", "wait", "check", "append", "compare_set", "delete_key", "num_keys", "list_keys"),
    *("multi_get", "multi_set", "queue_push", "queue_pop", "queue_len", "has_extended_api", "set_timeout"),
):
    setattr(ReleasableStore, _method, _forwarding(_method))
    setattr(ReleasableStore, _CPP_NAMES.get(_method, _method), _forwarding(_method))
