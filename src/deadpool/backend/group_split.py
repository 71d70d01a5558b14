"""Splits a process group as `group.split_group(ranks)` does, so that an abort can end it and a rebuild can repeat it.

A gloo group is connected here and not by torch: in plain torch a split of six ranks hangs now and then while it
connects. Main thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist

from deadpool.backend import world
from deadpool.backend.backend_factory import BackendFactory
from deadpool.backend.constructor_patch import SplitCall
from deadpool.backend.gloo.backends import GlooFactory
from deadpool.backend.nccl.communicators import NcclCommunicators
from deadpool.backend.supervisor import Supervisor


class GroupSplitter:
    def __init__(
        self, gloo: GlooFactory, factory: BackendFactory, communicators: NcclCommunicators, supervisor: Supervisor
    ) -> None:
        self._gloo, self._factory, self._communicators, self._supervisor = gloo, factory, communicators, supervisor

    def split(self, call: SplitCall) -> Any:
        """The result of split_group(): the new group, or None if this rank is not in it."""
        origin = next((each for each in world.joined_groups() if each.process_group is call.parent), None)
        if origin is None or not origin.transports:
            return call.original()
        connections = 0 if self._factory.detached else len(call.ranks) - 1
        work = partial(self._way_to_split(origin), origin, call)
        process_group = self._supervisor.run(f"splitting group {origin.name}", work, connections=connections)
        if process_group is not None:
            self._register(process_group, origin, call)
        return process_group

    def _way_to_split(self, origin: world.JoinedGroup) -> Callable[[world.JoinedGroup, SplitCall], Any]:
        if self._factory.detached:
            return self._fake_split
        return self._split_gloo if set(origin.transports) == {"gloo"} else _split_by_torch

    def _register(self, process_group: Any, origin: world.JoinedGroup, call: SplitCall) -> None:
        ranks = tuple(origin.global_ranks[rank] for rank in call.ranks)
        name = str(process_group.group_name)
        group = world.JoinedGroup(name, process_group, origin.parent or call.parent, ranks)
        world.register_split(group)
        self._supervisor.name_last_made(group.name)
        self._communicators.register_split(group, origin, detached=self._factory.detached)
        world.fill_in_ranks(group)

    def _fake_split(self, origin: world.JoinedGroup, call: SplitCall) -> Any:
        """A group of the same name, rank and size that communicates with no peer, for a rehearsal."""
        if origin.rank not in call.ranks:
            return None
        rank, size = call.ranks.index(origin.rank), len(call.ranks)
        backend = self._gloo.make_fake(rank, size, call.timeout or origin.timeout)
        process_group: Any = dist.ProcessGroup(dist.HashStore(), rank, size)
        _furnish(process_group, world.FAKE, backend, origin, call)
        return process_group

    def _split_gloo(self, origin: world.JoinedGroup, call: SplitCall) -> Any:
        if origin.rank not in call.ranks:
            return None
        rank, size = call.ranks.index(origin.rank), len(call.ranks)
        store = _store_of_attempt(call.parent.get_group_store(), _name_of(origin, call), size)
        backend = self._gloo.connect(store, rank, size, call.timeout or origin.timeout)
        process_group: Any = dist.ProcessGroup(store, rank, size)
        _furnish(process_group, "gloo", backend, origin, call)
        _await_all(store, size)
        return process_group


def _split_by_torch(origin: world.JoinedGroup, call: SplitCall) -> Any:
    process_group = call.original()
    if process_group is not None:
        size = process_group.size()
        _await_all(_store_of_attempt(process_group.get_group_store(), "met", size), size)
    return process_group


def _name_of(origin: world.JoinedGroup, call: SplitCall) -> str:
    """Returns the name that torch gives to the new group."""
    return call.name or f"{origin.name}:split:{call.ranks}"


def _furnish(process_group: Any, kind: str, backend: Any, origin: world.JoinedGroup, call: SplitCall) -> None:
    """Gives the new group its backend, name and description, as torch does."""
    world.put_first(process_group, kind, backend, call.devices or call.parent._device_types)
    process_group._set_group_name(_name_of(origin, call))
    description = call.description or f"{origin.process_group.group_desc}:split:{call.ranks}"
    process_group._set_group_desc(description)


def _store_of_attempt(store: dist.Store, name: str, size: int) -> dist.Store:
    """A part of the store for this attempt of these ranks to make the group: an earlier group may have had its name."""
    earlier = (store.add(f"{name}/begun", 1) - 1) // size
    return dist.PrefixStore(f"{name}/{earlier}", store)


def _await_all(store: dist.Store, size: int) -> None:
    """Waits until all ranks are connected: gloo hangs, also in plain torch, if one uses the group before another is."""
    if store.add("met", 1) == size:
        store.set("all met", "")
    store.wait(["all met"])
