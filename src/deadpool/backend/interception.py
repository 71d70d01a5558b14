"""Listens to collectives: between torch.distributed's functions and the process groups, for as long as one is needed.

Every collective of the Python API, blocking or not, single or batched, with tensors or with objects, ends in a method
of ProcessGroup. These methods are replaced and not the functions, because a script may have imported the functions
under other names, torch compares `irecv` by identity, and torch.compile knows the functions by identity too.
Collectives that C++ starts by itself (the reducer of DDP, DTensor's functional collectives) do not pass through here.

One listener records the small collectives of a live rank, another replays them to a process that rehearses the rank
alone. A result is recorded when its work has been waited for; results of a batch are recorded when the batch has been.
A script that only reads the future of an asynchronous collective leaves nothing recorded.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist

from deadpool.backend.recorded_collectives import CallbackWork, Key, RecordedCollectives, copy_into, is_recordable

# Some names are those of torch 2.11, some those of 2.13. Reduce-scatters are left out: their results are gradients.
METHODS_WITH_RESULTS = (
    *("recv", "recv_anysource", "broadcast", "scatter", "gather", "reduce", "allreduce", "allgather"),
    *("_allgather_base", "all_gather_single", "alltoall", "alltoall_base", "all_to_all_single"),
)

_GROUP: Any = dist.ProcessGroup
_name_of: Callable[[Any], str] = getattr(dist.distributed_c10d, "_get_process_group_name", str)

Find = Callable[[Key], tuple[bytes, ...] | None]


class Listener(Protocol):
    def __call__(self, key: Key, outputs: list[torch.Tensor], call: Callable[[], Any]) -> Any:
        """Is called in place of the collective, runs it by `call`, and returns its work."""


class Interception:
    """Has one listener at a time, and counts calls, so that a call has the same key in every process of a rank."""

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._originals: dict[str, Any] = {}
        self._batches: dict[
            str, list[Callable[[], None]]
        ] = {}  # by group: callbacks to run once its batch is waited for
        self.counts: Counter[tuple[str, str]] = Counter()

    def begin(self, listener: Listener) -> None:
        self._listener = listener
        self._batches.clear()
        for name in METHODS_WITH_RESULTS:
            self._replace(name, functools.partial(self._intercept, name))
        self._replace("_start_coalescing", self._intercept_batch_start)
        self._replace("_end_coalescing", self._intercept_batch_end)

    def defer_to_batch(self, key: Key, callback: Callable[[], None]) -> bool:
        """Whether the key's group is in a batch. Then only the work of the batch is waited for, not those of the single
        operations, so the callback runs after that wait."""
        batch = self._batches.get(key[1])
        if batch is not None:
            batch.append(callback)
        return batch is not None

    def end(self) -> None:
        for name, method in self._originals.items():
            setattr(_GROUP, name, method)
        self._originals.clear()
        self._listener = None

    def _replace(self, name: str, wrap: Callable[[Any], Any]) -> None:
        if name in vars(_GROUP) and name not in self._originals:
            self._originals[name] = vars(_GROUP)[name]
            setattr(_GROUP, name, wrap(getattr(_GROUP, name)))

    def _intercept_batch_start(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def start(group: Any, *arguments: Any) -> Any:
            self._batches[_name_of(group)] = []
            return method(group, *arguments)

        return start

    def _intercept_batch_end(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def end(group: Any, *arguments: Any) -> Any:
            work, callbacks = method(group, *arguments), self._batches.pop(_name_of(group), [])

            def run_all() -> None:
                for callback in callbacks:
                    callback()

            return CallbackWork(work, run_all) if callbacks and work is not None else work

        return end

    def _intercept(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def intercepted(group: Any, *arguments: Any, **keywords: Any) -> Any:
            def call() -> Any:
                return method(group, *arguments, **keywords)

            if self._listener is None or not arguments:  # torch.distributed's functions pass outputs by position
                return call()
            return self._listener(self._next_key(name, group), list(_tensors(arguments[0])), call)

        return intercepted

    def _next_key(self, name: str, group: Any) -> Key:
        operation = (name, _name_of(group))
        self.counts[operation] += 1
        return (*operation, self.counts[operation] - 1)


def _tensors(outputs: Any) -> Iterator[torch.Tensor]:
    """The first argument of a collective is what it fills: a tensor, a list of tensors, or a list of lists."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    else:
        for each in outputs:
            yield from _tensors(each)


class CollectiveReplay:
    """Records, replays, or does nothing. Main thread only, but the collectives may come from any thread."""

    def __init__(self) -> None:
        self._interception = Interception()
        self._before_loop: tuple[RecordedCollectives, Counter[tuple[str, str]]] | None = None
        self.recorded = RecordedCollectives()
        self.is_recording = False

    def record(self) -> None:
        """Called before the first line of the script of a live rank."""
        self._start_over()
        self.is_recording = True
        self._interception.begin(self._record)

    def replay(self, find: Find) -> None:
        """Called before the first line of the script of a rehearsal: it is given the results that `find` returns."""
        self._start_over()
        self._interception.begin(_ReplayListener(find))

    def mark(self) -> None:
        """The loop begins: rewind() comes back to here."""
        self._before_loop = (self.recorded.copy(), self._interception.counts.copy())

    def pause(self) -> None:
        """The block of the first step is over. Whether the step counts is not known yet: rewind() records again."""
        self._interception.end()

    def rewind(self) -> None:
        """The first step was cut off, was only rehearsed, or did not count: it begins again."""
        if self._before_loop is not None:
            recorded, counts = self._before_loop
            self.recorded, self._interception.counts = recorded.copy(), counts.copy()
        if self.is_recording:
            self._interception.begin(self._record)

    def record_first_step(self, recorded: RecordedCollectives) -> None:
        """Called by a newcomer that was replayed until the mark. `recorded` is what the lost rank had recorded."""
        assert self._before_loop is not None
        self._before_loop = (recorded, self._before_loop[1])
        self.rewind()
        self.is_recording = True
        self._interception.begin(self._record)

    def end(self) -> None:
        self._interception.end()
        self.is_recording = False

    def _start_over(self) -> None:
        self.end()
        self.recorded, self._before_loop = RecordedCollectives(), None
        self._interception.counts.clear()

    def _record(self, key: Key, outputs: list[torch.Tensor], call: Callable[[], Any]) -> Any:
        work, recorded = call(), self.recorded
        if recorded.closed is not None or not is_recordable(outputs):
            return work

        def add() -> None:
            recorded.add(key, outputs)

        if self._interception.defer_to_batch(key, add):
            return work
        if work is None:  # torch has waited already
            add()
            return None
        return CallbackWork(work, add)


class _ReplayListener:
    def __init__(self, find: Find) -> None:
        self._find = find

    def __call__(self, key: Key, outputs: list[torch.Tensor], call: Callable[[], Any]) -> Any:
        work = call()  # that of a fake group: complete at once
        result = self._find(key) if is_recordable(outputs) else None
        if (result is None or not copy_into(outputs, result)) and key[0].startswith("recv"):
            for tensor in outputs:  # activations: zeros are valid input, with no NaN and no index out of range
                tensor.data.zero_()
        return work
