"""NCCL's communicators: how each was made, what torch's flight recorder knows of them, and CUDA graphs that may not
hold their collectives.

`NcclCommunicators` are the NCCL backends of this process: how each was made, which may have communicators, and which
were used. A rebuild needs the first and the last of these, an abort the second. abort() may be called from any thread,
everything else from the main thread.

`GraphCapture` refuses CUDA graphs that hold collectives, where they are captured. A graph replays the kernels of the
communicators that it was captured with. A recovery ends those, and nothing can put others into the graph: its next
replay would wait for ever, or compute with memory that was freed. Every collective gets a number from its group, also
one that C++ begins, so a group that has counted while a graph was captured is in it. Point-to-point operations are not
numbered in all versions of torch, and not seen.

The flight recorder knows which collectives the device is in, and how long past ones took. It tells whether one has
started only if collectives are timed (`prepare_environment` sees to that). Reading it asks the device about events,
which would break a CUDA graph that another thread captures meanwhile: so a thread that reads has to relax its capture
mode first. Entries of communicators that were aborted stay in it for a while, and may look as if they ran: so only
those that were enqueued since a given time are read. NCCL2 (since torch 2.15) has a recorder of its own, which never
says that a collective has started: with it a device that waits in one is not seen, and past ones have durations.
"""

from __future__ import annotations

import copy
import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from deadpool.backend import nccl_backends as nccl
from deadpool.backend import world
from deadpool.backend.supervisor import Supervisor
from deadpool.backend.torch_versions import ProcessGroupNCCL2
from deadpool.errors import Inexact

_dump = getattr(_distributed_c10d, "_dump_nccl_trace_json", None)  # None: this torch was built without NCCL
_dump_any = getattr(_distributed_c10d, "_dump_fr_trace_json", None)
_NCCL2 = "nccl2"  # the name under which NCCL2's collectives are recorded, whatever the backend was called


class NcclCommunicators:
    """`on_torn_down` gets the seconds that an abort took; `on_hang` is called if an abort never returns."""

    def __init__(
        self, supervisor: Supervisor, on_torn_down: Callable[[float], None], on_hang: Callable[[], None]
    ) -> None:
        self._supervisor, self._on_torn_down, self._on_hang = supervisor, on_torn_down, on_hang
        self._lock = threading.Lock()
        self._abortable: list[Any] = []  # backends that may have communicators
        self._recipes: dict[str, nccl.Recipe] = {}  # by group
        self.used: set[str] = set()  # groups that have run a collective over NCCL

    @property
    def exist(self) -> bool:
        """Whether any group of this process uses NCCL."""
        return bool(self._recipes)

    def warm_up(self) -> None:
        for kind in {recipe.kind for recipe in self._recipes.values()}:
            nccl.warm_up(kind)

    def make(
        self, what: str, recipe: nccl.Recipe, store: dist.Store, rank: int, size: int, wait_s: float | None = None
    ) -> Any:
        """The backend is registered before the caller has it, so that no abort misses it. One that connects while it is
        made cannot be aborted until then: an abort gives up the wait for it."""
        self._recipes[recipe.options.group_name] = recipe

        def make() -> Any:
            backend = recipe.make(store, rank, size)
            with self._lock:
                self._abortable.append(backend)
            return backend

        return self._supervisor.run(what, make, keep=False, wait_s=wait_s)

    def make_unconnected(self, recipe: nccl.Recipe, rank: int, size: int) -> Any:
        self._recipes[recipe.options.group_name] = recipe
        return recipe.make_unconnected(rank, size)

    def remake(self, group: world.JoinedGroup, store: dist.Store, wait_s: float) -> Any:
        recipe = self._recipes[group.name]
        return self.make(f"rebuilding group {group.name}", recipe, store, group.rank, group.size, wait_s)

    def register(self, group: world.JoinedGroup, *, detached: bool) -> None:
        """Keeps the backend, to abort it, also one that torch has made by itself. Does nothing for a fake group."""
        if group.nccl is None or detached or world.is_faked(group.process_group):
            return
        backend = _backend(group)
        with self._lock:
            if all(backend is not known for known in self._abortable):
                self._abortable.append(backend)

    def register_split(self, group: world.JoinedGroup, origin: world.JoinedGroup, *, detached: bool) -> None:
        """The new group is made anew as its origin is. In a rehearsal it is fake and has no options of its own: it gets
        those of its origin."""
        if group.nccl is None:
            return
        self.register(group, detached=detached)
        recipe = self._recipes[origin.name]
        options = copy.deepcopy(recipe.options) if detached else _backend(group).options
        self._recipes[group.name] = replace(recipe, options=options)

    def abort(self) -> None:
        """Returns at once: the communicators are torn down in threads of their own."""
        with self._lock:
            backends, self._abortable = self._abortable, []
        if backends:
            nccl.Teardown(backends, self._on_torn_down, self._on_hang).start()

    def note_use(self) -> None:
        if self.exist:
            unknown = [group for group in world.joined_groups() if group.name not in self.used]
            over_nccl = [group for group in unknown if group.nccl is not None]
            self.used |= {group.name for group in over_nccl if nccl.was_used(_backend(group))}

    def connect_used(self, groups: Sequence[world.JoinedGroup], wait_s: float) -> None:
        """Connects the groups that had been used before the rebuild, so that the first step need not do it and the
        loss of a peer ends it. Those that connect when they are made have done so."""
        used = [_backend(group) for group in groups if group.name in self.used]
        backends = [backend for backend in used if nccl.connects_at_first_use(backend)]
        if backends:
            device = torch.cuda.current_device()
            self._supervisor.run("connecting groups", lambda: nccl.connect(backends, device), keep=False, wait_s=wait_s)


def _backend(group: world.JoinedGroup) -> Any:
    assert group.nccl is not None
    return group.backend(group.nccl)


_GRAPH: Any = torch.cuda.CUDAGraph
_BEGIN, _END = "capture_begin", "capture_end"


class GraphCapture:
    def __init__(self) -> None:
        self._originals: dict[str, Any] = {}
        self._before: dict[str, int] = {}

    def install(self) -> None:
        if self._originals:
            return
        self._originals = {name: getattr(_GRAPH, name) for name in (_BEGIN, _END)}
        begin, end = self._originals[_BEGIN], self._originals[_END]

        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> None:
            begin(graph, *args, **kwargs)
            self._before = _collectives_so_far()

        def capture_end(graph: Any) -> None:
            end(graph)
            self._refuse_collectives(graph)

        setattr(_GRAPH, _BEGIN, capture_begin)
        setattr(_GRAPH, _END, capture_end)

    def uninstall(self) -> None:
        for name, method in self._originals.items():
            setattr(_GRAPH, name, method)
        self._originals = {}

    def _refuse_collectives(self, graph: Any) -> None:
        held = [name for name, count in _collectives_so_far().items() if count > self._before.get(name, 0)]
        if held:
            graph.reset()  # nobody replays it by mistake
            raise Inexact(
                f"this CUDA graph holds collectives of group {', '.join(map(repr, held))}, and after a fault it would "
                "replay communicators that are gone. Leave collectives outside of the graph (capture forward and "
                "backward of the module below DDP or FSDP, reduce behind it), or run without CUDA graphs"
            )


def _collectives_so_far() -> dict[str, int]:
    """Counts them by the name of each group that communicates over NCCL; the groups of a rehearsal do not."""
    over_nccl = [(group, group.nccl) for group in world.joined_groups() if group.nccl is not None]
    return {group.name: nccl.collectives_so_far(group.backend(name)) or 0 for group, name in over_nccl}


@dataclass(frozen=True, slots=True)
class Collective:
    number: int
    group: int
    enqueued_ns: int  # since 1970
    has_started: bool
    is_pair: bool  # sent to or received from one rank: a pipeline may enqueue it long before it is due
    seconds: float | None  # on the device, with the time in which it waited for peers; None: not ended


def is_available() -> bool:
    """Tells whether the recorder may be read: without torch's cache of events it would read events that are gone."""
    return _dump is not None and os.environ.get("TORCH_NCCL_CUDA_EVENT_CACHE", "1").lower() not in ("0", "false", "n")


def pending(since_ns: int) -> list[Collective]:
    """Returns the collectives that have not ended, in the order in which they were enqueued."""
    return _read(since_ns, only_active=True)


def ended(since_ns: int) -> list[Collective]:
    """The last ones that have. Takes tens of milliseconds if there are thousands."""
    return [each for each in _read(since_ns, only_active=False) if each.seconds is not None]


def _read(since_ns: int, *, only_active: bool) -> list[Collective]:
    assert _dump is not None
    wanted: dict[str, bool] = {"includeCollectives": True, "onlyActive": only_active}
    dumps = [_dump(**wanted)]
    if ProcessGroupNCCL2 is not None and _dump_any is not None:
        dumps.append(_dump_any(**wanted, backend=_NCCL2))
    entries: list[dict[str, Any]] = [entry for dump in dumps for entry in json.loads(dump).get("entries", [])]
    return [_collective(each) for each in entries if int(each["time_created_ns"]) >= since_ns]


def _collective(entry: dict[str, Any]) -> Collective:
    duration_ms = entry.get("duration_ms")
    return Collective(
        number=int(entry["record_id"]),
        group=int(entry["pg_id"]),
        enqueued_ns=int(entry["time_created_ns"]),
        has_started=entry["state"] == "started",
        is_pair=bool(entry["is_p2p"]),
        seconds=float(duration_ms) / 1000 if duration_ms is not None else None,
    )
