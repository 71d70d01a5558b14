"""Which CPUs the threads that move copies keep to, on machines of several shapes."""

from __future__ import annotations

import os

import pytest

from deadpool.control.agent.threads import bulk_cpus
from deadpool.errors import ConfigError


@pytest.fixture
def machine(tmp_path, monkeypatch):
    def make(cores, numa_nodes=(), usable=None):
        """`cores` are sets of siblings, `numa_nodes` are sets of CPUs; what is not given the machine does not tell."""
        for core in cores:
            for cpu in core:
                path = tmp_path / f"cpu/cpu{cpu}/topology/thread_siblings_list"
                path.parent.mkdir(parents=True)
                path.write_text(",".join(map(str, sorted(core))) + "\n")
        for number, cpus in enumerate(numa_nodes):
            path = tmp_path / f"node/node{number}/cpulist"
            path.parent.mkdir(parents=True)
            path.write_text(f"{min(cpus)}-{max(cpus)}\n")
        everything = usable if usable is not None else set().union(*cores)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(everything))
        return tmp_path

    return make


def test_a_quarter_of_the_cores_with_their_siblings(machine):
    system = machine([{core, core + 16} for core in range(16)])
    assert bulk_cpus("", system) == {12, 13, 14, 15, 28, 29, 30, 31}


def test_a_machine_that_tells_nothing(machine):
    system = machine([], usable=set(range(16)))
    assert bulk_cpus("", system) == {12, 13, 14, 15}


def test_each_numa_node_gives_its_share(machine):
    system = machine([{cpu} for cpu in range(16)], [set(range(8)), set(range(8, 16))])
    assert bulk_cpus("", system) == {6, 7, 14, 15}


def test_a_quarter_in_all_where_numa_nodes_are_small_or_uneven(machine):
    cores = [{cpu} for cpu in range(24)]
    assert len(bulk_cpus("", machine(cores, [set(range(first, first + 3)) for first in range(0, 24, 3)]))) == 6


def test_a_mask_that_leaves_little_of_one_numa_node(machine):
    cores = [{cpu} for cpu in range(16)]
    system = machine(cores, [set(range(8)), set(range(8, 16))], usable={0, 1, 2, 3, 4, 5, 8, 9})
    assert bulk_cpus("", system) == {5, 9}


def test_what_the_system_says_may_be_odd(machine):
    system = machine([], usable=set(range(8)))
    (system / "node/node0").mkdir(parents=True)
    (system / "node/node0/cpulist").write_text("all of them\n")
    assert bulk_cpus("", system) == {6, 7}


def test_only_cpus_that_the_agent_may_use(machine):
    system = machine([{core, core + 16} for core in range(16)], usable=set(range(4, 12)))
    assert bulk_cpus("", system) == {10, 11}


def test_few_cores_are_all_used(machine):
    assert bulk_cpus("", machine([{cpu} for cpu in range(7)])) == frozenset()


def test_what_the_user_says(machine):
    system = machine([{cpu} for cpu in range(16)])
    assert bulk_cpus("0-2,99", system) == {0, 1, 2}
    with pytest.raises(ConfigError, match=r"bulk_cpus='40-41' cannot be used: give some of this node's CPUs, 0,1,"):
        bulk_cpus("40-41", system)
