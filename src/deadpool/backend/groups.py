"""All process groups of this process: they are made, aborted, rebuilt and forgotten here.

The public interface of this package. abort() may be called from any thread, everything else from the main thread. A
group that user code or a framework holds stays the same object through a recovery: only its backend is replaced.

A step that is computed again makes its groups again, under the same names, and not every rank had made them the first
time. So the groups that exist at a step boundary are marked, and a process that comes back to the boundary returns to
the mark. A mark is part of the boundary record: a newcomer returns to the mark of the rank that it takes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from deadpool.backend import backend_release, torch_versions, world
from deadpool.backend import nccl_backends as nccl
from deadpool.backend.backend_factory import BackendFactory, GroupSplitter, MembersOf, all_members
from deadpool.backend.constructor_patch import ConstructorPatch, GroupHooks
from deadpool.backend.gloo_backends import GlooFactory, PeerLoss
from deadpool.backend.nccl_communicators import GraphCapture, NcclCommunicators
from deadpool.backend.plain_groups import check_backend, check_transports
from deadpool.backend.store import StoreConnection
from deadpool.backend.supervisor import Supervisor
from deadpool.errors import GroupError, GroupMissing


class Groups:
    """Makes, aborts, rebuilds and forgets the process groups of this process.

    `on_torn_down` gets the seconds that the clean-up after an abort took, if there was any; `on_hang` is called if that
    clean-up will never end; `on_all_destroyed` is called when the script destroys all groups.
    """

    def __init__(
        self,
        *,
        hostname: str = "127.0.0.1",
        timeout_s: float,
        on_torn_down: Callable[[float], None] = lambda _: None,
        on_hang: Callable[[], None] = lambda: None,
        on_all_destroyed: Callable[[], None] = lambda: None,
    ) -> None:
        self._timeout_s = timeout_s
        self._gloo = GlooFactory(hostname)
        self._supervisor = Supervisor()
        self._connection = StoreConnection(self._supervisor, timeout_s)
        self._peer_loss = PeerLoss(self._supervisor, self._connection)
        self._communicators = NcclCommunicators(self._supervisor, on_torn_down, on_hang)
        self._factory = BackendFactory(self._gloo, self._communicators, self._supervisor)
        self._device_choice = nccl.DeviceChoice()
        self._patch = ConstructorPatch(self._hooks())
        self._graph_capture = GraphCapture()
        self._on_all_destroyed = on_all_destroyed
        self._keeps_destroyed = False
        self._destroyed: list[Any] = []
        self._swap_count = 0
        self._marked: dict[str, str] = {}  # the names of the groups in the last mark -> their ranks

    def _hooks(self) -> GroupHooks:
        factory = self._factory
        return GroupHooks(
            constructors={
                "ProcessGroupGloo": factory.make_gloo,
                **{each.__name__: partial(factory.make_nccl, each) for each in torch_versions.nccl_classes()},
            },
            on_made=self._on_made,
            split=GroupSplitter(self._gloo, factory, self._communicators, self._supervisor).split,
            on_destroy=self._on_destroy,
            choose_device=self._device_choice.without_binding,
            made_on=self._device_choice.made_on,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the groups that this rank is in, in order of creation."""
        return tuple(group.name for group in world.joined_groups())

    @property
    def default_timeout(self) -> timedelta:
        """The timeout of the default group."""
        return world.joined_groups()[0].timeout

    @property
    def detached(self) -> bool:
        """True while every group is fake: this process rehearses and no other process waits for it."""
        return self._factory.detached

    @property
    def abort_count(self) -> int:
        """How often abort() was called in this process."""
        return self._supervisor.abort_count

    @property
    def can_rebuild(self) -> bool:
        """False: this torch permits no further rebuild in this process, and another process has to take its place."""
        return backend_release.is_possible() or self._swap_count + _swaps_needed(_abortable()) <= world.SWAP_LIMIT

    @property
    def shows_losses(self) -> bool:
        """Whether has_lost_a_peer() sees every loss. It does not with NCCL, whose connections cannot be examined."""
        return not self._communicators.exist

    def has_lost_a_peer(self) -> bool:
        """Whether a connection has closed that no peer closed on purpose. No collective over it can have succeeded
        since. Always False while groups are aborted, so the caller checks the abort flag afterwards."""
        return self._peer_loss.has_happened()

    def install(self) -> None:
        """Makes plain calls such as new_group give gloo and NCCL groups that can be aborted and rebuilt."""
        self._patch.install()
        self._graph_capture.install()
        self._supervisor.claim_ports(self._gloo.open_device)

    def keep_destroyed(self) -> None:
        """Keeps alive every group that the script destroys from now on. The loop is over, so it happens once, and
        freeing the group from C++ could hang the process for ever (docs/design-notes.md)."""
        self._keeps_destroyed = True

    def uninstall(self) -> None:
        """Puts torch's own functions back: for tests that make several Groups in one process."""
        self._patch.uninstall()
        self._graph_capture.uninstall()

    def init(self, *, backend: str, store: dist.Store, rank: int, world_size: int, detached: bool) -> None:
        """Makes the default group. Detached: it and all later groups are fake until rebuild()."""
        check_backend(backend)
        if not self._patch.is_installed:
            raise GroupError("install() comes before init()")
        self._factory.detached = detached
        own_store = store if detached else self._connection.connect(store)
        self._peer_loss.reset()
        timeout = timedelta(seconds=self._timeout_s)
        dist.init_process_group(backend, store=own_store, rank=rank, world_size=world_size, timeout=timeout)

    def use_device(self, device: torch.device) -> None:
        """The script has named the device of its groups."""
        self._device_choice.named = device

    def warm_up(self) -> None:
        """Does in a rehearsal what a first connection would have to do, once the script has chosen its device."""
        self._communicators.warm_up()

    def read(self, store: dist.Store, key: str) -> bytes:
        """Waits until a peer has set the key. GroupError: it cannot be read, or an abort came meanwhile."""
        return bytes(self._supervisor.run(f"waiting for {key!r}", lambda: store.get(key), keep=False))

    def abort(self) -> int:
        """Ends every collective and every making of a group; returns how many sockets were shut down. Any thread.

        Until the next rebuild() a new group fails at once, and so does a collective that has to communicate with a
        peer. NCCL's communicators are torn down in the background.
        """
        shut = self._supervisor.abort()
        self._communicators.abort()
        return shut

    def mark(self) -> dict[str, Any]:
        """The groups that exist now, as plain values that return_to() accepts, also in another process."""
        if tuple(self._marked) != self.names:  # a mark is taken at every step, and groups seldom change
            self._marked = {group.name: group.ranks for group in world.joined_groups()}
        if not self.detached:
            self._communicators.note_use()
        return {"groups": dict(self._marked), "made": world.made_count(), "used": sorted(self._communicators.used)}

    def return_to(self, mark: dict[str, Any]) -> tuple[str, ...]:
        """Forgets the groups made after the mark, keeps all others, and returns the names of the forgotten ones. The
        numbering of groups goes on from the mark.

        GroupMissing: a group of the mark is not in this process, and its other members would wait for ever.
        """
        marked: dict[str, str] = mark["groups"]
        newer = [group for group in world.joined_groups() if marked.get(group.name) != group.ranks]
        forgotten = tuple(group.name for group in newer)
        for name in marked:
            if name not in self.names or name in forgotten:
                raise GroupMissing(_missing(name, marked[name]))
        world.forget(newer, self._gloo.make_refusing)
        world.set_made_count(mark["made"])
        self._marked, self._communicators.used = {}, set(mark["used"])
        return forgotten

    def rebuild(
        self,
        store: dist.Store,
        prefix: str,
        *,
        after_abort: int | None = None,
        members: MembersOf = all_members,
    ) -> None:
        """Connects every group anew under `prefix`; a detached process becomes attached.

        All ranks call it, each for all groups that it is in. `after_abort` is the abort_count that the caller has seen:
        an abort that it has not seen makes this raise instead of being forgotten.

        `members` says which ranks of each group are connected, where some have no process.
        """
        groups = sorted(_abortable(), key=lambda group: group.name)
        if not self.can_rebuild:
            raise GroupError(f"{world.SWAP_LIMIT} rebuilds done, torch has no room for another: restart the process")
        first_number = self._swap_count + 1
        self._swap_count += _swaps_needed(groups)
        _end_batches(groups)
        self._supervisor.allow(after_abort=after_abort)
        self._peer_loss.reset()
        replaced: list[Any] = []
        try:
            own_store = self._connection.connect(store)
            # In the order of names, which all ranks have in common: so no two ranks wait for each other in a circle.
            for group in groups:
                group_store = dist.PrefixStore(f"{prefix}/{group.name}", own_store)
                backends = self._factory.remake(group, group_store, self._timeout_s, members)
                replaced += world.swap(group, backends, group_store, first_number)
                self._supervisor.name_last_made(group.name)
            self._communicators.connect_used(groups, self._timeout_s)
        except GroupError:
            self.abort()  # only some of the groups are new: none may be used
            raise
        finally:
            _release(replaced)
        self._factory.detached = False

    def _on_destroy(self, name: str | None) -> None:
        """None: all groups."""
        if self._keeps_destroyed:
            self._destroyed += [each.process_group for each in world.joined_groups() if name in (None, each.name)]
        self._peer_loss.announce(self.names if name is None else (name,))
        if name is None:
            self._on_all_destroyed()

    def _on_made(self, process_group: Any) -> None:
        group = world.joined(process_group)
        self._supervisor.name_last_made(group.name)
        check_transports(group)
        world.fill_in_ranks(group)
        self._communicators.register(group, detached=self.detached)
        self._factory.cover_with_fake(group)


def _abortable() -> list[world.JoinedGroup]:
    """The groups that a recovery has to rebuild."""
    return [group for group in world.joined_groups() if group.transports]


def _swaps_needed(groups: list[world.JoinedGroup]) -> int:
    return max((len(group.transports) for group in groups), default=0)


def _end_batches(groups: list[world.JoinedGroup]) -> None:
    if world.end_batches():
        over_nccl = [(each, each.nccl) for each in groups if each.nccl is not None]
        for group, transport in over_nccl[:1]:  # all share one state of NCCL
            nccl.close_group_call(group.backend(transport))


def _release(backends: list[Any]) -> None:
    """Frees replaced backends in a thread: a backend ends its threads only after its last operation, which an abort may
    not have reached, so the wait may be long."""
    if backends:
        threading.Thread(target=backends.clear, name="deadpool-release", daemon=True).start()


def _missing(name: str, ranks: str) -> str:
    return (
        f"group {name!r} of {ranks} is not in this process, but the job had it before the step it resumes from: it was "
        "made in a step that this process never ran, or destroyed since. Make process groups and meshes before the "
        "loop over steps, and destroy them after it"
    )
