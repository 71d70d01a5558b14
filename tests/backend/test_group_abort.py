"""abort() and rebuild() in processes of their own: what blocks is ended, what is destroyed is forgotten."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from backend_child import GROUP_TIMEOUT_S, connect
from backend_fleet import run_in_children
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from waiting import LIMIT_S

from deadpool.backend.groups import Groups
from deadpool.backend.store import ReleasableStore
from deadpool.errors import ConfigError, GroupError

pytestmark = pytest.mark.e2e


class WatchedStore(ReleasableStore):
    """Tells when somebody begins to wait in it; may then keep him there for ever."""

    def __init__(self, inner: dist.Store, *, stuck: bool = False) -> None:
        super().__init__(inner)
        self.waited_in = threading.Event()
        self._stuck = stuck

    def clone(self) -> dist.Store:
        return self

    def wait(self, *arguments: Any) -> None:
        self.waited_in.set()
        if self._stuck:
            threading.Event().wait()
        self._client().wait(*arguments)


def detached_groups(rank: int, *, timeout_s: float = GROUP_TIMEOUT_S) -> Groups:
    groups = Groups(timeout_s=timeout_s)
    groups.install()
    groups.init(backend="gloo", store=dist.HashStore(), rank=rank, world_size=2, detached=True)
    return groups


def joined_groups(rank: int, port: int, world_size: int) -> Groups:
    groups = Groups(timeout_s=GROUP_TIMEOUT_S)
    groups.install()
    groups.init(backend="gloo", store=connect(port), rank=rank, world_size=world_size, detached=False)
    return groups


def has_raised(action: Callable[[], object], kind: type[Exception]) -> bool:
    """What would wait for its time-out waits for longer than the test lasts."""
    with pytest.raises(kind):
        action()
    return True


def abort_once(waiting: threading.Event, groups: Groups) -> threading.Thread:
    def wait_and_abort() -> None:
        waiting.wait()
        groups.abort()

    thread = threading.Thread(target=wait_and_abort)
    thread.start()
    return thread


def meet(store: dist.Store, name: str, count: int) -> None:
    """All of them have come when this returns."""
    if store.add(f"{name}/count", 1) == count:
        store.set(f"{name}/all", "")
    store.wait([f"{name}/all"])


def rebuild_without_peer(rank: int, port: int) -> bool:
    groups = detached_groups(rank)
    store = WatchedStore(connect(port))
    abort_once(store.waited_in, groups)
    return has_raised(lambda: groups.rebuild(store, "g2"), GroupError)


def test_abort_while_rebuild_waits_for_a_peer_that_never_comes() -> None:
    assert run_in_children(rebuild_without_peer) == [True]


def rebuild_with_peer_that_stops_half_way(rank: int, port: int) -> bool:
    groups, plain = detached_groups(rank), connect(port)
    if rank == 1:
        store = WatchedStore(plain, stuck=True)  # has published where it listens, connects to nobody
        threading.Thread(target=lambda: groups.rebuild(store, "g2"), daemon=True).start()
        store.waited_in.wait()
        plain.set("stuck", "")
        plain.wait(["seen"])
        return False
    plain.wait(["stuck"])
    store = WatchedStore(connect(port))
    aborting = abort_once(store.waited_in, groups)
    try:
        groups.rebuild(store, "g2")
    except GroupError:
        return True
    finally:
        aborting.join()
        plain.set("seen", "")
    # By the order of their addresses, this side was the one that connects and needs no answer: its group was made.
    return has_raised(lambda: dist.all_reduce(torch.ones(1)), RuntimeError)


def test_abort_while_rebuild_waits_for_a_connection() -> None:
    assert run_in_children(rebuild_with_peer_that_stops_half_way, ranks=2) == [True, False]


def rebuild_too_long(rank: int, port: int) -> str:
    with pytest.raises(GroupError) as caught:
        detached_groups(rank, timeout_s=1.0).rebuild(connect(port), "g2")
    return str(caught.value)


def test_rebuild_gives_up_when_a_peer_is_missing() -> None:
    """The store's own patience is as long as ours, and may end first."""
    (reason,) = run_in_children(rebuild_too_long)
    assert re.match("rebuilding group 0: (not every peer came within 1 s|wait timeout after 1000ms)", reason)


def collective_without_peer(rank: int, port: int) -> list[Any]:
    groups, store = joined_groups(rank, port, 2), connect(port)
    meet(store, "made", 2)
    if rank == 1:
        store.wait(["over"])
        return []
    unrelated, theirs = _tcp_pair()
    work = dist.all_reduce(torch.ones(2), async_op=True)
    threading.Thread(target=groups.abort).start()
    ended = [has_raised(work.wait, RuntimeError)]
    ended.append(has_raised(lambda: dist.all_reduce(torch.ones(2)), RuntimeError))
    ended.append(has_raised(lambda: dist.new_group([0, 1]), GroupError))
    unrelated.sendall(b"x")
    store.set("over", "")
    return [ended, groups.abort(), theirs.recv(1)]


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        return here, server.accept()[0]


def test_abort_ends_a_collective_and_what_comes_after_but_nobody_elses_connection() -> None:
    ended, shut_again, received = run_in_children(collective_without_peer, ranks=2)[0]
    assert ended == [True, True, True]
    assert shut_again == 0
    assert received == b"x"


class BusyStore(WatchedStore):
    """Somebody else opens a connection of his own just while a group is made."""

    unrelated: tuple[socket.socket, socket.socket] | None = None

    def wait(self, *arguments: Any) -> None:
        if self.unrelated is None:
            self.unrelated = _tcp_pair()
        super().wait(*arguments)


def rebuild_beside_an_unrelated_group(rank: int, port: int) -> list[Any]:
    groups, plain = detached_groups(rank), connect(port)
    store = BusyStore(connect(port))
    groups.rebuild(store, "g1")
    meet(plain, "made", 2)
    shut = groups.abort()
    assert store.unrelated is not None
    here, there = store.unrelated
    here.sendall(b"x")
    there.sendall(b"y")
    return [shut, there.recv(1), here.recv(1), has_raised(lambda: dist.all_reduce(torch.ones(2)), RuntimeError)]


def test_connection_that_somebody_else_opened_meanwhile_is_not_shut() -> None:
    for shut, *received, ended in run_in_children(rebuild_beside_an_unrelated_group, ranks=2):
        assert shut <= 1  # of one pair both ranks shut their end, and one of them may come too late
        assert received == [b"x", b"y"]
        assert ended


def rebuild_after_unseen_abort(rank: int, port: int) -> str:
    groups = joined_groups(rank, port, 1)
    seen = groups.abort_count
    groups.abort()
    with pytest.raises(GroupError) as caught:
        groups.rebuild(connect(port), "g2", after_abort=seen)
    return str(caught.value)


def test_abort_that_nobody_saw_is_not_forgotten() -> None:
    assert "aborted again" in run_in_children(rebuild_after_unseen_abort)[0]


def build_twice(rank: int, port: int) -> list[tuple[str, ...]]:
    groups, store = joined_groups(rank, port, 2), connect(port)
    names = [_build(groups)]
    meet(store, "built", 2)
    dist.destroy_process_group()
    groups.init(backend="gloo", store=dist.PrefixStore("again", store), rank=rank, world_size=2, detached=False)
    names.append(_build(groups))
    meet(store, "built again", 2)
    groups.abort()
    meet(store, "aborted", 2)
    groups.rebuild(store, "g2")
    ones = torch.ones(3)
    dist.all_reduce(ones, group=dist.new_group([0, 1]))
    assert ones.tolist() == [2.0, 2.0, 2.0]
    meet(store, "used", 2)
    dist.destroy_process_group()
    return names


def _build(groups: Groups) -> tuple[str, ...]:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
    whole = torch.arange(8.0).reshape(4, 2)
    sharded = distribute_tensor(whole, mesh["tensor"], [Shard(0)])
    assert torch.equal((sharded + sharded).redistribute(placements=[Replicate()]).to_local(), whole * 2)
    dist.new_group([0, 1])
    return groups.names


def test_a_world_that_was_destroyed_can_be_made_again() -> None:
    for first, second in run_in_children(build_twice, ranks=2):
        assert len(first) >= 3
        assert first == second


def test_process_ends_cleanly_after_a_rebuild() -> None:
    """A real interpreter with its own end, which forked children do not have."""
    script = Path(__file__).with_name("ends_after_rebuild.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout.count("ended")) == (0, 2), done.stderr


def test_unknown_backend_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"backend='mpi'.*'gloo', 'nccl'.* or one for each device"):
        Groups(timeout_s=1).init(backend="mpi", store=dist.HashStore(), rank=0, world_size=1, detached=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nccl_without_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"backend='nccl' cannot be used: torch .* 'gloo' would work"):
        Groups(timeout_s=1).init(backend="nccl", store=dist.HashStore(), rank=0, world_size=1, detached=False)
