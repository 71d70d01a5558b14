"""has_lost_a_peer(): a broken connection of any group is seen at once, and nothing else is taken for one."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from backend_child import connect
from backend_fleet import run_in_children
from test_group_abort import joined_groups, meet
from waiting import LIMIT_S, wait_until

from deadpool.backend.groups import Groups
from deadpool.backend.supervisor import Supervisor

pytestmark = pytest.mark.e2e


def soon(groups: Groups) -> bool:
    """A death is seen as soon as the system has cleaned up after it, and stays seen."""
    wait_until(groups.has_lost_a_peer, "the loss of a peer")
    return groups.has_lost_a_peer()


def die_when_told(store: dist.Store) -> None:
    store.wait(["die"], timedelta(seconds=LIMIT_S))
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_fork(rank: int) -> bool:
    """True in a child that stands for the rank; its parent only waits, so that the test still hears of the rank."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return not child


def see_death(rank: int, port: int) -> list[Any]:
    if rank == 2 and not die_in_fork(rank):
        return []
    groups, store = joined_groups(rank, port, 3), connect(port)
    dist.new_group([0, 1])
    dist.barrier()
    before = groups.has_lost_a_peer()
    meet(store, "looked", 3)
    if rank == 2:
        die_when_told(store)
    store.set("die", "")
    seen = soon(groups)
    work = _failure(lambda: dist.all_reduce(torch.ones(1)))
    return [before, seen, bool(work), groups.has_lost_a_peer()]


def _failure(action: Any) -> str:
    try:
        action()
    except RuntimeError as error:
        return str(error)
    return ""


def test_death_of_a_peer_is_seen_and_stays_seen() -> None:
    found = run_in_children(see_death, ranks=3)
    assert found[0] == found[1] == [False, True, True, True]


def failed_collective(rank: int, port: int) -> bool:
    """Whoever gets the exception finds its cause, at that very moment."""
    if rank == 1 and not die_in_fork(rank):
        return True
    groups, store = joined_groups(rank, port, 2), connect(port)
    meet(store, "made", 2)
    if rank == 1:
        die_when_told(store)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    store.set("die", "")
    assert _failure(work.wait)
    return groups.has_lost_a_peer()


def test_cause_of_an_exception_is_seen_when_it_comes() -> None:
    assert run_in_children(failed_collective, ranks=2) == [True, True]


def await_closed_connection(groups: Groups) -> None:
    """Until a connection to a peer has closed, for whatever reason."""
    wait_until(groups._supervisor.missing_connections, "a connection that has closed")


def destroy_here_and_there(rank: int, port: int) -> list[bool]:
    """Groups end at different times on different ranks, are kept by whoever holds them, and are made again."""
    if rank == 2 and not die_in_fork(rank):
        return []
    groups, store = joined_groups(rank, port, 3), connect(port)
    held = [dist.new_group([0, 1, 2]) for _ in range(4)]
    found = []
    for round_ in range(2):
        dist.barrier(group=held[round_])
        if rank == 0:
            dist.destroy_process_group(held[round_])
        meet(store, f"destroyed {round_}", 3)
        if rank == 0 and round_ == 0:
            held[0] = None  # its connections close now; in the other round the reference keeps them open
        if rank != 0 and round_ == 0:
            await_closed_connection(groups)
        found.append(groups.has_lost_a_peer())
        meet(store, f"looked {round_}", 3)
    dist.barrier()
    for _ in range(10):
        mine = dist.new_group([0, 1, 2])
        dist.barrier(group=mine)
        dist.destroy_process_group(mine)
        found.append(groups.has_lost_a_peer())
    meet(store, "churned", 3)
    if rank == 2:
        die_when_told(store)
    found.append(groups.has_lost_a_peer())
    meet(store, "all looked", 2)
    store.set("die", "")
    return [any(found), soon(groups)]


def test_groups_that_are_destroyed_are_no_loss_and_hide_none() -> None:
    found = run_in_children(destroy_here_and_there, ranks=3)
    assert found[0] == found[1] == [False, True]


def destroy_because_it_failed(rank: int, port: int) -> bool:
    """The evidence is destroyed with the group: what was seen before counts."""
    groups, store = joined_groups(rank, port, 2), connect(port)
    pair = dist.new_group([0, 1])
    meet(store, "made", 2)
    if rank == 1:
        ours = groups._supervisor._peers._pools[-1].sockets  # of one group, as a network would break it
        for each in ours:
            socket.socket(fileno=os.dup(each.fd)).shutdown(socket.SHUT_RDWR)
        lost = soon(groups)  # before the other rank destroys the group
        meet(store, "broken", 2)
    else:
        meet(store, "broken", 2)
        assert _failure(lambda: dist.barrier(group=pair))
        dist.destroy_process_group(pair)
        del pair
        lost = soon(groups)
    meet(store, "looked", 2)
    return lost


def test_group_that_is_destroyed_because_it_failed() -> None:
    assert run_in_children(destroy_because_it_failed, ranks=2) == [True, True]


def world_made_again(rank: int, port: int) -> list[bool]:
    """Rank 0 is first each time: rank 1 sees its connections end, and has to know that this was on purpose."""
    groups, store = joined_groups(rank, port, 2), connect(port)
    found = []
    for round_ in range(3):
        dist.barrier()
        if rank == 0:
            dist.destroy_process_group()
        meet(store, f"destroyed {round_}", 2)
        if rank == 1:
            await_closed_connection(groups)
            found.append(groups.has_lost_a_peer())
            dist.destroy_process_group()
        again = dist.PrefixStore(f"again-{round_}", store)
        groups.init(backend="gloo", store=again, rank=rank, world_size=2, detached=False)
    return found


def test_world_that_is_destroyed_and_made_again_is_no_loss() -> None:
    assert run_in_children(world_made_again, ranks=2)[1] == [False, False, False]


def announced_once(rank: int, port: int) -> list[Any]:
    """Two groups share a pool of connections, as where a peer was ahead; rank 0 says that it destroys the first."""
    groups, store = joined_groups(rank, port, 2), connect(port)
    meet(store, "made", 2)
    peers = groups._supervisor._peers
    [pool] = peers._pools
    pool.needs["other"] = 1
    if rank == 0:
        assert groups._connection.current is not None
        groups._connection.current.add("closed/0", 1)
    meet(store, "announced", 2)
    found: list[Any] = [groups._peer_loss._is_announced(("0", "other"), 1), dict(pool.needs)]
    peers.forget("other")
    found.append(groups._peer_loss._is_announced(("0",), 1))
    meet(store, "looked", 2)
    return found


def test_announced_end_counts_once_and_for_its_own_group() -> None:
    """Whichever other group shared its connections meanwhile."""
    assert run_in_children(announced_once, ranks=2)[1] == [True, {"0": 0, "other": 1}, False]


def rebuilt(rank: int, port: int) -> list[bool]:
    groups, store = joined_groups(rank, port, 2), connect(port)
    dist.new_group([0, 1])
    meet(store, "made", 2)
    groups.abort()
    meet(store, "aborted", 2)
    groups.rebuild(store, "g2", after_abort=1)
    dist.barrier()
    found = [groups.has_lost_a_peer()]
    meet(store, "looked", 2)
    return found


def test_rebuilt_groups_are_whole() -> None:
    assert run_in_children(rebuilt, ranks=2) == [[False], [False]]


def test_checking_many_connections_costs_as_much_for_each_as_checking_few() -> None:
    few_s, many_s = (cost_of_checking(count) for count in (100, 1000))
    assert many_s < 40 * few_s  # 10 times as many connections; 100 times if each were compared with all


def cost_of_checking(count: int) -> float:
    """The CPU time of one check, the least of several; the loss of one connection of so many is seen."""
    supervisor = Supervisor()
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
        ends: list[socket.socket] = []

        def meet_many() -> None:
            for _ in range(count):
                ends.extend((socket.create_connection(server.getsockname()), server.accept()[0]))

        supervisor.run("making a large group", meet_many, connections=count)
        supervisor.name_last_made("0")
        assert supervisor.missing_connections() == {}
        least_s = min(_cpu_s(supervisor.missing_connections) for _ in range(10))
        ends[1].close()
        assert supervisor.missing_connections() == {("0",): 1}
        for end in ends:
            end.close()
    return least_s


def _cpu_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
