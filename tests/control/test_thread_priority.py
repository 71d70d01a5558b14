"""Threads that move bulk are niced, and keep to the CPUs they were given, and nobody else's are or do."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

from deadpool.control.agent.threads import ThreadPriority


def manners() -> tuple[int, frozenset[int]]:
    thread = threading.get_native_id()
    return os.getpriority(os.PRIO_PROCESS, thread), frozenset(os.sched_getaffinity(thread))


def manners_of_a_child() -> tuple[int, frozenset[int]]:
    found = []
    child = threading.Thread(target=lambda: found.append(manners()))
    child.start()
    child.join()
    return found[0]


def test_bulk_threads_and_those_they_start_give_way():
    mine = manners()
    cpu = frozenset([min(os.sched_getaffinity(0))])
    with ThreadPoolExecutor(1, initializer=ThreadPriority(7, cpu).apply) as pool:
        assert pool.submit(manners).result() == (7, cpu)
        assert pool.submit(manners_of_a_child).result() == (7, cpu)
    assert manners() == mine


def test_thread_that_has_less_priority_already_keeps_it():
    """Ray starts its workers with a niceness of 15; an ordinary user who asks for less is refused by the kernel."""
    with ThreadPoolExecutor(1, initializer=ThreadPriority(9).apply) as pool:
        pool.submit(ThreadPriority(7).apply).result()
        assert pool.submit(manners).result()[0] == 9


def test_cpus_that_were_taken_away_do_not_stop_the_work():
    with ThreadPoolExecutor(1, initializer=ThreadPriority(7, frozenset([9999])).apply) as pool:
        assert pool.submit(manners).result() == (7, frozenset(os.sched_getaffinity(0)))
