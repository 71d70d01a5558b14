"""Every process group of this process: how they are made, aborted, rebuilt and forgotten.

The one door of this room. abort() may be called from any thread; everything else belongs to the main thread. A group
that user code or a framework holds stays the same object through a recovery: only the backend inside it is replaced.

A step that is done again makes its groups again, under the same names, and not every rank had made them the first time.
So what exists at a step boundary is marked, and whoever comes back to that boundary returns to the mark. A mark is part
of the boundary record: a newcomer returns to the mark of the rank it takes.

Whoever destroys a group says so, by its name: a connection does not tell to which rank it leads. So one that breaks in
the moment between a peer's word and the end of that peer's own is taken for it. That hides the loss of a peer only
where the default group itself is being destroyed, and until the agents see it.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from deadpool.backend import backend_release, nccl, world
from deadpool.backend.constructor_patch import Door, Make, Split
from deadpool.backend.gloo import GlooFactory
from deadpool.backend.store import ReleasableStore
from deadpool.backend.supervisor import Supervisor
from deadpool.errors import ConfigError, GroupError, GroupMissing

default_pg_timeout: timedelta = dist.distributed_c10d.default_pg_timeout
_OF_THE_SCRIPT = frozenset({world.FAKE})  # backends that talk to nobody: there is nothing to abort or to connect


class Groups:
    """Makes, aborts, rebuilds and forgets the process groups of this process.

    `on_torn_down` hears how long an abort's clean-up took, where there is any; `on_hang` that it will never end.
    """

    def __init__(
        self,
        *,
        hostname: str = "127.0.0.1",
        timeout_s: float,
        on_torn_down: Callable[[float], None] = lambda _: None,
        on_hang: Callable[[], None] = lambda: None,
    ) -> None:
        self._timeout_s = timeout_s
        self._on_torn_down, self._on_hang = on_torn_down, on_hang
        self._gloo = GlooFactory(hostname)
        self._supervisor = Supervisor()
        makers: dict[str, Make] = {"ProcessGroupGloo": self._make_gloo, "ProcessGroupNCCL": self._make_nccl}
        self._door = Door(makers, self._finish, self._split, self._destroying)
        self._lost = False  # a peer, as was seen when a group was destroyed
        self._accounted: Counter[str] = Counter()  # connections that peers have ended on purpose, by group
        self._adding = threading.Lock()
        self._communicators: list[Any] = []  # NCCL backends that may have any
        self._nccl_options: dict[str, Any] = {}  # by group, as it was made
        self._used: set[str] = set()  # groups that NCCL has carried something for
        self._store: ReleasableStore | None = None
        self._detached = False
        self._swap_count = 0
        self._marked: dict[str, str] = {}  # name -> ranks, as of the last mark

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the groups this rank is a member of, in order of creation."""
        return tuple(member.name for member in world.members())

    @property
    def detached(self) -> bool:
        """True while every group is fake: this process rehearses and nobody waits for it."""
        return self._detached

    @property
    def abort_count(self) -> int:
        """How often abort() was called in this process."""
        return self._supervisor.abort_count

    @property
    def can_rebuild(self) -> bool:
        """False: this process has used up what its torch has room for, and another one has to take its place."""
        return backend_release.is_possible() or self._swap_count + _swaps_needed(_members()) <= world.SWAP_LIMIT

    @property
    def shows_losses(self) -> bool:
        """Every loss of a peer is seen by has_lost_a_peer(): NCCL's connections cannot be looked at."""
        return not self._nccl_options

    def has_lost_a_peer(self) -> bool:
        """Whether some connection has ended that nobody has ended on purpose. No collective over it can have succeeded
        since. Nothing is seen while groups are aborted: whoever asks looks at the flag afterwards."""
        return self._lost or any(not self._was_on_purpose(*each) for each in self._supervisor.missing().items())

    def install(self) -> None:
        """From here on every gloo or NCCL group made by a plain call is ours."""
        self._door.open()
        self._supervisor.listen_through(self._gloo.open_device)

    def uninstall(self) -> None:
        """Puts torch's own functions back: for tests that make several in one process."""
        self._door.close()

    def init(self, *, backend: str, store: dist.Store, rank: int, world_size: int, detached: bool) -> None:
        """Makes the default group. Detached: it and all later groups are fake until rebuild()."""
        _check_backend(backend)
        if not self._door.is_open:
            raise GroupError("install() comes before init()")
        self._detached = detached
        own_store = store if detached else self._connect(store)
        self._lost, self._accounted = False, Counter()  # what was said of groups of the same names is in another store
        timeout = timedelta(seconds=self._timeout_s)
        dist.init_process_group(backend, store=own_store, rank=rank, world_size=world_size, timeout=timeout)

    def warm_up(self) -> None:
        """While detached, and once the script has chosen its device: what a first connection would have to do."""
        if self._nccl_options:
            nccl.warm_up()

    def abort(self) -> int:
        """From any thread: ends every collective and every making of a group; returns how many sockets were shut.

        Until the next rebuild() a new group fails at once, and so does a collective that would have to
        talk to a peer. Communicators of NCCL are torn down meanwhile; nobody need wait for it.
        """
        shut = self._supervisor.abort()
        with self._adding:
            communicators, self._communicators = self._communicators, []
        if communicators:
            nccl.Teardown(communicators, self._on_torn_down, self._on_hang).start()
        return shut

    def mark(self) -> dict[str, Any]:
        """Which groups exist now, as plain values: all that return_to() needs, also on another process."""
        if tuple(self._marked) != self.names:  # taken at every step: groups seldom change
            self._marked = {member.name: member.ranks for member in world.members()}
        self._note_use()
        return {"groups": dict(self._marked), "made": world.made_count(), "used": sorted(self._used)}

    def return_to(self, mark: dict[str, Any]) -> tuple[str, ...]:
        """Forgets the groups made after the mark, keeps all others, and counts on from it. Names what was forgotten.

        GroupMissing: a group of the mark is not here, and its other members would wait for ever.
        """
        marked: dict[str, str] = mark["groups"]
        newer = [member for member in world.members() if marked.get(member.name) != member.ranks]
        forgotten = tuple(member.name for member in newer)
        for name in marked:
            if name not in self.names or name in forgotten:
                raise GroupMissing(_missing(name, marked[name]))
        world.forget(newer, self._gloo.refusing)
        world.set_made_count(mark["made"])
        self._marked, self._used = {}, set(mark["used"])
        return forgotten

    def rebuild(self, store: dist.Store, prefix: str, *, after_abort: int | None = None) -> None:
        """Connects every group anew under `prefix`; a detached process becomes attached.

        All ranks call it, each for all groups it is a member of. `after_abort` is the abort_count that the caller has
        seen: an abort it has not seen makes this raise instead of being forgotten.
        """
        members = sorted(_members(), key=lambda member: member.name)
        if not self.can_rebuild:
            raise GroupError(f"{world.SWAP_LIMIT} rebuilds done, torch has no room for another: restart the process")
        first_number = self._swap_count + 1
        self._swap_count += _swaps_needed(members)
        self._end_batches(members)
        self._supervisor.allow(after_abort=after_abort)
        replaced: list[Any] = []
        self._lost, self._accounted = False, Counter()
        try:
            own_store = self._connect(store)
            # By name: an order that all ranks have in common, so that nobody waits in a circle.
            for member in members:
                store_of_group = dist.PrefixStore(f"{prefix}/{member.name}", own_store)
                replaced += world.swap(member, self._backends(member, store_of_group), store_of_group, first_number)
                self._supervisor.name_newest(member.name)
            self._connect_used(members)
        except GroupError:
            self.abort()  # half of the groups are new: none may be used
            raise
        finally:
            _let_go(replaced)
        self._detached = False

    def _connect(self, store: Any) -> dist.Store:
        # A client of our own: an abort ends waiting in it without cutting anybody else off from the store.
        self._release_store()
        client = self._supervisor.run("connecting to the store", store.clone, wait_s=self._timeout_s)
        self._store = ReleasableStore(client)
        return self._store

    def _release_store(self) -> None:
        if self._store is not None:
            self._store.release()
            self._store = None

    # --- backends, at the making of a group --------------------------------------------------------------------------

    def _make_gloo(self, store: dist.Store, rank: int, size: int, timeout: timedelta = default_pg_timeout) -> Any:
        if self._detached:
            return self._supervisor.run("making a fake group", lambda: self._gloo.alone(timeout), connections=0)
        return self._supervisor.run(
            "making a group", lambda: self._gloo.real(store, rank, size, timeout), connections=size - 1
        )

    def _make_nccl(self, store: dist.Store, rank: int, size: int, options: Any) -> Any:
        if self._detached:
            return nccl.make_alone(options)
        return self._supervisor.run("making a group", lambda: self._nccl(store, rank, size, options), keep=False)

    def _nccl(self, store: dist.Store, rank: int, size: int, options: Any) -> Any:
        """Known before it can connect, so that no abort misses it."""
        backend = nccl.make(store, rank, size, options)
        with self._adding:
            self._communicators.append(backend)
        return backend

    def _split(self, split: Split) -> Any:
        origin = next((each for each in world.members() if each.group is split.parent), None)
        if origin is None or not origin.transports:
            return split.call()
        make = self._split_off if self._detached or set(origin.transports) == {"gloo"} else _split_and_meet
        connections = 0 if self._detached else len(split.ranks) - 1
        work = partial(make, origin, split)
        group = self._supervisor.run(f"splitting group {origin.name}", work, connections=connections)
        if group is None:
            return None
        ranks = tuple(origin.global_ranks[rank] for rank in split.ranks)
        member = world.Member(str(group.group_name), group, origin.parent or split.parent, ranks)
        world.note_split(member)
        self._supervisor.name_newest(member.name)
        self._note_nccl(member)
        if "nccl" in member.transports:
            self._nccl_options.setdefault(member.name, copy.deepcopy(self._nccl_options[origin.name]))
        world.fill_in_ranks(member)
        return group

    def _split_off(self, origin: world.Member, split: Split) -> Any:
        """Over gloo as torch does it, but connected by us: plain gloo hangs now and then while it connects a split of
        six ranks. A rehearsal gets a group of the same name, rank and size that talks to nobody."""
        if origin.rank not in split.ranks:
            return None
        rank, size, timeout = split.ranks.index(origin.rank), len(split.ranks), split.timeout or origin.timeout
        name = split.name or f"{origin.name}:split:{split.ranks}"
        if self._detached:
            store: dist.Store = dist.HashStore()
            kind, backend = world.FAKE, self._gloo.fake(rank, size, timeout)
        else:
            store = _own_part(split.parent.get_group_store(), name, size)
            kind, backend = "gloo", self._gloo.real(store, rank, size, timeout)
        group: Any = dist.ProcessGroup(store, rank, size)
        world.furnish(group, kind, backend, split.devices or split.parent._device_types)
        group._set_group_name(name)
        group._set_group_desc(split.description or f"{origin.group.group_desc}:split:{split.ranks}")
        if not self._detached:
            _meet(store, size)
        return group

    def _finish(self, group: Any) -> None:
        member = world.member(group)
        self._supervisor.name_newest(member.name)
        _check_transports(member)
        world.fill_in_ranks(member)
        self._note_nccl(member)
        if self._detached and not world.is_faked(group):
            world.fake(group, self._gloo.fake(member.rank, member.size, member.timeout))

    def _note_nccl(self, member: world.Member) -> None:
        """Its options, to make it anew; and the backend, to abort it."""
        if "nccl" in member.transports and not world.is_faked(member.group):
            backend = member.backend("nccl")
            self._nccl_options[member.name] = backend.options
            with self._adding:
                if not self._detached and all(backend is not known for known in self._communicators):
                    self._communicators.append(backend)

    # --- groups that are destroyed -----------------------------------------------------------------------------------

    def _destroying(self, name: str | None) -> None:
        """Whoever destroys a group says so before a connection of it ends, or its peers would take it for lost. What
        had ended before is remembered: a script may destroy a group because it failed."""
        if self._store is None or self._supervisor.is_aborted:
            return
        self._lost = self.has_lost_a_peer()
        for each in self.names if name is None else (name,):
            with contextlib.suppress(GroupError, RuntimeError):  # whoever asks will not find it, and waits for a fence
                self._store.add(_closed(each), 1)
            self._supervisor.forget(each)

    def _was_on_purpose(self, groups: tuple[str, ...], count: int) -> bool:
        """So many connections of these groups are missing: have as many peers said that they destroy theirs?"""
        if self._store is None:
            return False
        try:
            said = {each: self._store.add(_closed(each), 0) - self._accounted[each] for each in groups}
        except (GroupError, RuntimeError):
            return False
        if sum(said.values()) < count:
            return False
        for each, ended in said.items():
            taken = min(ended, count)
            count -= taken
            self._accounted[each] += taken
            self._supervisor.accept_missing(each, taken)
        return True

    # --- backends, at a rebuild --------------------------------------------------------------------------------------

    def _backends(self, member: world.Member, store: dist.Store) -> dict[str, Any]:
        return {transport: self._rebuilt(transport, member, store) for transport in member.transports}

    def _rebuilt(self, transport: str, member: world.Member, store: dist.Store) -> Any:
        rank, size, timeout = member.rank, member.size, member.timeout
        what = f"rebuilding group {member.name}"
        if transport == "nccl":
            options = nccl.unsplit(self._nccl_options[member.name])
            return self._supervisor.run(what, lambda: self._nccl(store, rank, size, options), keep=False)
        backend = self._supervisor.run(
            what,
            lambda: self._gloo.real(store, rank, size, timeout),
            connections=size - 1,
            wait_s=self._timeout_s,
        )
        backend._set_sequence_number_for_group()
        return backend

    def _end_batches(self, members: list[world.Member]) -> None:
        if world.end_batches():
            for member in [each for each in members if "nccl" in each.transports][:1]:  # they all share NCCL's state
                nccl.close_group_call(member.backend("nccl"))

    def _connect_used(self, members: list[world.Member]) -> None:
        """What NCCL had connected before, it connects now: the first step need not, and a peer's loss ends it."""
        backends = [member.backend("nccl") for member in members if member.name in self._used]
        if backends:
            device = torch.cuda.current_device()
            self._supervisor.run(
                "connecting groups", lambda: nccl.connect(backends, device), keep=False, wait_s=self._timeout_s
            )

    def _note_use(self) -> None:
        if self._nccl_options and not self._detached:
            unknown = [member for member in world.members() if member.name not in self._used]
            self._used |= {
                member.name
                for member in unknown
                if "nccl" in member.transports and nccl.was_used(member.backend("nccl"))
            }


def _closed(group: str) -> str:
    return f"closed/{group}"


def _missing(name: str, ranks: str) -> str:
    return (
        f"group {name!r} of {ranks} is not in this process, but the job had it before the step it resumes from: it was "
        "made in a step that this process never ran, or destroyed since. Make process groups and meshes before the "
        "loop over steps, and destroy them after it"
    )


def _split_and_meet(origin: world.Member, split: Split) -> Any:
    group = split.call()
    if group is not None:
        _meet(_own_part(group.get_group_store(), "met", group.size()), group.size())
    return group


def _own_part(store: dist.Store, name: str, size: int) -> dist.Store:
    """Of the store, for the group that these ranks make now: one of the same name may have been there before."""
    before = (store.add(f"{name}/begun", 1) - 1) // size
    return dist.PrefixStore(f"{name}/{before}", store)


def _meet(store: dist.Store, size: int) -> None:
    """A rank that uses the new group while another one is still connecting makes gloo hang, in plain torch too."""
    if store.add("met", 1) == size:
        store.set("all met", "")
    store.wait(["all met"])


def _check_transports(member: world.Member) -> None:
    unknown = sorted(member.backend_names - world.OURS - _OF_THE_SCRIPT)
    if unknown:
        raise ConfigError(
            f"group {member.name!r} of {member.size} ranks cannot be protected: backend {unknown[0]!r} cannot be "
            "aborted and made anew; 'gloo' or 'nccl' would be accepted"
        )


def _members() -> list[world.Member]:
    """Those that a recovery has to do something about."""
    return [member for member in world.members() if member.transports]


def _swaps_needed(members: list[world.Member]) -> int:
    return max((len(member.transports) for member in members), default=0)


def _let_go(backends: list[Any]) -> None:
    """A backend ends its threads when nobody holds it any more. That takes as long as its last operation does, which an
    abort may not have reached: so nobody waits for it."""
    if backends:
        threading.Thread(target=backends.clear, name="deadpool-let-go", daemon=True).start()


def _check_backend(backend: str) -> None:
    """One name, or one for each device: "cpu:gloo,cuda:nccl", in any order."""
    parts = [part.rpartition(":") for part in backend.lower().split(",")]
    known = all(name in world.OURS and device in ("", "cpu", "cuda") for device, _, name in parts)
    on_cpu_by_nccl = any((device, name) == ("cpu", "nccl") for device, _, name in parts)
    if not known or on_cpu_by_nccl or (len(parts) > 1 and len({device for device, _, _ in parts} - {""}) < len(parts)):
        raise ConfigError(
            f"backend={backend!r} cannot be used: 'gloo', 'nccl' or one for each device, as in 'cpu:gloo,cuda:nccl', "
            "would be accepted"
        )
    if "nccl" in backend.lower():
        nccl.prepare_environment()
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:
        raise ConfigError("TORCH_DISTRIBUTED_DEBUG='DETAIL' cannot be used: 'OFF' or 'INFO' would be accepted")
