"""The backends of process groups: how they are made, split and connected.

`all_members`: which ranks of a group its backend connects. By itself all of them; who rebuilds groups may say
otherwise.

`BackendFactory` makes the backends of process groups: real ones, or those of a rehearsal, which communicate with no
peer.

Every real backend is made under the supervisor, so that an abort can end the wait for its peers. Main thread only.

`GroupSplitter` splits a process group as `group.split_group(ranks)` does, so that an abort can end it and a rebuild
can repeat it.

A gloo group is connected here and not by torch: in plain torch a split of six ranks hangs now and then while it
connects. Main thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from deadpool.backend import nccl_backends as nccl
from deadpool.backend import torch_versions, world
from deadpool.backend.constructor_patch import SplitCall
from deadpool.backend.gloo_backends import GlooFactory
from deadpool.backend.nccl_communicators import NcclCommunicators
from deadpool.backend.supervisor import Supervisor
from deadpool.errors import ConfigError, GroupError

MembersOf = Callable[[Sequence[int]], list[int] | None]
"""Returns, of the ranks of a group, those that have a process, in the order of the backend. The group keeps its size,
since scripts and frameworks have read it and divide by it. None: no collective of this group would be right."""


def all_members(ranks: Sequence[int]) -> list[int]:
    return list(ranks)


_DEFAULT_TIMEOUT: timedelta = getattr(dist.distributed_c10d, "default_pg_timeout", timedelta(minutes=30))


class BackendFactory:
    """While `detached` this process rehearses, and every backend it makes is fake or has no peers."""

    def __init__(self, gloo: GlooFactory, communicators: NcclCommunicators, supervisor: Supervisor) -> None:
        self._gloo, self._communicators, self._supervisor = gloo, communicators, supervisor
        self.detached = False

    # --- in place of torch's constructors, with their arguments ------------------------------------------------------

    def make_gloo(
        self, store: dist.Store, rank: int, size: int, timeout: timedelta = _DEFAULT_TIMEOUT, **more: Any
    ) -> Any:
        refuse_unknown(more)
        if self.detached:
            return self._supervisor.run(
                "making a fake group", lambda: self._gloo.make_unconnected(rank, size, timeout), connections=0
            )
        return self._supervisor.run(
            "making a group", lambda: self._gloo.connect(store, rank, size, timeout), connections=size - 1
        )

    def make_nccl(
        self,
        kind: Any,
        store: dist.Store,
        rank: int,
        size: int,
        options: Any,
        device: torch.device | None = None,
        **more: Any,
    ) -> Any:
        """`kind` is one of torch's classes; only the newer one is given a device."""
        nccl.prepare_environment()  # the default group may have none over NCCL
        refuse_unknown({"enable_reconfigure": getattr(options, "enable_reconfigure", False), **more})
        recipe = nccl.Recipe.of(kind, options, device)
        if self.detached:
            return self._communicators.make_unconnected(recipe, rank, size)
        return self._communicators.make("making a group", recipe, store, rank, size)

    def cover_with_fake(self, group: world.JoinedGroup) -> None:
        """In a rehearsal, no collective of a new group may reach the real backend beneath."""
        if self.detached and not world.is_faked(group.process_group):
            world.put_fake(group.process_group, self._gloo.make_fake(group.rank, group.size, group.timeout))

    # --- at a rebuild ------------------------------------------------------------------------------------------------

    def remake(
        self, group: world.JoinedGroup, store: dist.Store, wait_s: float, members_of: MembersOf
    ) -> dict[str, Any]:
        """New connected backends for the group, by transport."""
        members = members_of(group.global_ranks)
        if members is None:
            return {transport: self._gloo.make_refusing(group.rank, group.size) for transport in group.transports}
        return {transport: self._remake(transport, group, store, wait_s, members) for transport in group.transports}

    def _remake(
        self, transport: str, group: world.JoinedGroup, store: dist.Store, wait_s: float, members: list[int]
    ) -> Any:
        if transport in torch_versions.NCCL_NAMES:
            if len(members) < group.size:
                raise GroupError(f"group {group.name} has ranks without a process, and NCCL was not tried with that")
            return self._communicators.remake(group, store, wait_s)
        rank, size, timeout = members.index(group.global_ranks[group.rank]), len(members), group.timeout
        backend = self._supervisor.run(
            f"rebuilding group {group.name}",
            lambda: self._gloo.connect(store, rank, size, timeout),
            connections=size - 1,
            wait_s=wait_s,
        )
        if torch_versions.members_agree_on_sequence_numbers():
            backend._set_sequence_number_for_group()
        return backend


def refuse_unknown(keywords: Mapping[str, Any]) -> None:
    """A newer torch may pass more than the constructors took when this was written. What is switched off or empty does
    no harm (torchtitan 0.3 passes _ranks=[]); the rest would be ignored, and the group would be another one than the
    script asked for."""
    for name, value in keywords.items():
        is_empty = isinstance(value, list | tuple | dict | set | str) and not value
        if value is not None and value is not False and not is_empty:
            raise ConfigError(
                f"a process group with {name}={value!r} cannot be used: DeadPool would not know how to make it anew; "
                "leave the argument out"
            )


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
