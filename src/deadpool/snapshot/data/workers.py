"""What runs in the worker processes of a loader: it tells the state of their generators, and puts them into another.

A worker begins with the seed of its iterator and goes on from there, batch after batch, so what it draws depends on
all batches that it has made. With each batch that has drawn anything it tells where its generators, and those that
dataset and collator hold, are now. A worker that takes part later is put there by an index that is no index.

The loader's `worker_init_fn` brings this into the worker, whether it is forked or spawned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data._utils import fetch, pin_memory

from deadpool.snapshot.data.generators import Generators
from deadpool.snapshot.data.held_values import HeldValues, read_unnoted
from deadpool.snapshot.record.record import decode, encode


@dataclass(frozen=True, slots=True)
class ToState:
    """Stands for the indices of a batch. The worker makes none, and answers with it. None: it stays as it is."""

    state: bytes | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """A batch, and the state of the worker that has made it, if that has changed."""

    batch: Any
    state: bytes | None
    worker: int

    def pin_memory(self, device: str | None = None) -> Made:
        return Made(pin_memory.pin_memory(self.batch, device), self.state, self.worker)


class WorkerStart:
    """The `worker_init_fn` of a loader whose position is known. It calls the script's own."""

    def __init__(self, own: Callable[[int], None] | None) -> None:
        self._own = own

    def __call__(self, worker: int) -> None:
        if self._own is not None:
            self._own(worker)
        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            kind.fetch = _telling(kind.fetch, WorkerState(worker))  # type: ignore[method-assign]


class WorkerState:
    def __init__(self, worker: int) -> None:
        self.worker = worker
        self._held: HeldValues | None = None
        self._told = b""
        self._fetcher: Any = None  # there is one for each epoch
        self._is_first = False
        self._has_read, self._is_put_unread = False, False
        self._sequences: dict[str, bytes] = {}

    def begin(self, fetcher: Any) -> None:
        if fetcher is not self._fetcher:
            self._is_first, self._fetcher = True, fetcher
        if self._held is None:
            self._held = HeldValues(lambda: {"dataset": fetcher.dataset, "collate_fn": fetcher.collate_fn})
            self._told = self._encoded()

    def put(self, state: bytes) -> None:
        assert self._held is not None
        self._is_put_unread = not self._has_read
        generators, held = decode(state, "the state of a worker")
        Generators.decoded(generators).restore()
        self._held.write_all(held)
        self._sequences = self._held.read_sequences()
        self._told = state

    def reads(self, read: Callable[[], object]) -> None:
        """A worker that was put to a state has not made what its dataset keeps from its first sample on."""
        if self._is_put_unread and isinstance(self._fetcher, fetch._MapDatasetFetcher):
            assert self._held is not None
            read_unnoted(self._held, read)
        self._has_read, self._is_put_unread = True, False

    def news(self) -> bytes | None:
        state, self._is_first = self._encoded(), False
        if state == self._told:
            return None
        self._told = state
        return state

    def _encoded(self) -> bytes:
        """Lists and arrays are looked at with the first batch of an epoch."""
        assert self._held is not None
        if self._is_first:
            self._sequences = self._held.read_sequences()
        held = self._sequences | self._held.read()
        return encode([Generators.now().encoded(), held], "the state of a worker")


def _telling(original: Any, state: WorkerState) -> Any:
    def fetch_and_tell(fetcher: Any, indices: Any) -> Any:
        state.begin(fetcher)
        if isinstance(indices, ToState):
            if indices.state is not None:
                state.put(indices.state)
            return ToState()
        state.reads(lambda: original(fetcher, indices))
        return Made(original(fetcher, indices), state.news(), state.worker)

    return fetch_and_tell
