"""The doctor's parts that are values only, and its figures of memory on machines that are not here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deadpool.doctor.clock import apart, compare, offset_s, parse_left
from deadpool.doctor.examination import NoOutcome, compared, parse_size, preflight, run_all
from deadpool.doctor.finding import ExitCode, Finding, FindingKind, NodeReport, exit_code
from deadpool.doctor.links import Link, peers_of, ring, slow_links
from deadpool.errors import ConfigError
from deadpool.host.host_memory import cgroup_rooms, room

GIB = 2**30


def report(node: str, **facts: object) -> NodeReport:
    return NodeReport(node=node, facts=dict(facts))


# --- findings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        ([], ExitCode.FINE),
        ([FindingKind.NOTE], ExitCode.FINE),
        ([FindingKind.UNKNOWN, FindingKind.NOTE], ExitCode.COULD_NOT_LOOK),
        ([FindingKind.UNKNOWN, FindingKind.FINDING], ExitCode.FINDING),
    ],
)
def test_exit_code(kinds, code):
    assert exit_code([Finding(check="c", what="w", do="d", kind=kind) for kind in kinds]) == code


def test_report_survives_json():
    whole = NodeReport(node="n", facts={"a": 1}, findings=(Finding(check="c", what="w", do="d", node="n"),))
    assert NodeReport.from_json(json.loads(json.dumps(whole.to_json()))) == whole


def test_one_that_differs_from_most_is_named():
    reports = [report("a", torch="2.12"), report("b", torch="2.13"), report("c", torch="2.13")]
    (found,) = compare(reports)
    assert found.node == "a" and "it has torch 2.12, and the others have 2.13" in found.what


def test_equal_and_absent_versions_are_no_finding():
    assert compare([report("a", torch="2.13", nccl=None), report("b", torch="2.13", nccl=None)]) == []
    assert compare([]) == compare([report("a", torch="2.13")]) == []
    (found,) = compare([report("a", driver="580.1"), report("b", driver="580.1"), report("c", driver=None)])
    assert found.node == "c" and "not at all" in found.what


# --- clocks ----------------------------------------------------------------------------------------------------------


def test_offset_is_that_of_the_peer_whatever_it_took():
    ahead, error = offset_s(100.0, 110.1, 115.1, 105.2)
    assert ahead == pytest.approx(10.0) and error == pytest.approx(0.1)


def test_offset_within_its_error_is_no_finding():
    assert apart("n", 0.9, 0.5, "others") == apart("n", -0.4, 0.0, "others") == []
    assert "behind" in apart("n", -0.9, 0.1, "others")[0].what


# --- links -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 64, 65, 1000])
def test_every_node_reaches_and_is_reached(count):
    reached = [peer for index in range(count) for peer in peers_of(index, count)]
    assert set(reached) == set(range(count))
    assert all(index not in peers_of(index, count) for index in range(count))
    assert max(len(peers_of(index, count)) for index in range(count)) <= 63


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8])
def test_each_sends_and_receives_once_in_a_round(count):
    rounds = ring(count)
    assert len(rounds) == (0 if count < 2 else 1 if count == 2 else 2)
    for pairs in rounds:
        assert sorted(a for a, _ in pairs) == sorted(b for _, b in pairs) == list(range(count))


def test_link_far_below_the_others_is_slow_although_it_is_fast_enough():
    links = [Link("a", "b", 10.0), Link("b", "c", 1.0), Link("c", "a", 9.0)]
    assert [found.node for found in slow_links(links, 0.1)] == ["b"]
    assert slow_links([Link("a", "b", 3.0), Link("b", "a", 1.0)], 0.1) == []


def test_link_of_a_busy_machine_is_a_note():
    (found,) = slow_links([Link("a", "b", 0.05, network_share=0.3)], 0.1)
    assert found.kind is FindingKind.NOTE


# --- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"), [("63GB", 63e9), ("1.5GiB", 1.5 * GIB), ("4096", 4096), ("2 k", 2000), ("0", 0), ("1tb", 1e12)]
)
def test_size(text, size):
    assert parse_size(text, "arena") == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "1.2.3", "1PB"])
def test_size_that_is_none(text):
    with pytest.raises(ConfigError, match="arena="):
        parse_size(text, "arena")


@pytest.mark.parametrize(
    ("text", "left"), [("2-03:04:05", 183845.0), ("3:04:05", 11045.0), ("4:05", 245.0), ("UNLIMITED", None), ("", None)]
)
def test_time_left_as_squeue_writes_it(text, left):
    assert parse_left(text) == left


# --- memory ----------------------------------------------------------------------------------------------------------


def machine(tmp_path: Path, files: dict[str, str]) -> Path:
    given = {
        "proc/meminfo": "MemTotal: 99 kB\nMemAvailable: 8388608 kB\nCommitLimit: 3145728 kB\nCommitted_AS: 1048576 kB\n"
    }
    for name, text in {**given, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


V2 = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = "31 23 0:27 {} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def limits(folder: str, *, limit: str, used: int, stat: str = "", version: int = 2) -> dict[str, str]:
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    return {f"{folder}/{names[0]}": limit, f"{folder}/{names[1]}": str(used), f"{folder}/memory.stat": stat}


def test_limit_of_an_ancestor_holds(tmp_path):
    top = "sys/fs/cgroup/system.slice"
    here = machine(
        tmp_path,
        {"proc/self/cgroup": "0::/system.slice/job/step\n", "proc/self/mountinfo": V2}
        | limits(f"{top}/job/step", limit="max", used=GIB)
        | limits(f"{top}/job", limit=str(4 * GIB), used=3 * GIB)
        | limits(top, limit=str(9 * GIB), used=5 * GIB),
    )
    assert room(here).bytes == GIB and "system.slice/job (4.00 GiB)" in room(here).limited_by
    assert len(list(cgroup_rooms(here))) == 2


def test_page_cache_is_room(tmp_path):
    stat = f"anon 5\ninactive_file {2 * GIB}\nactive_file {GIB}\nshmem 7\n"
    files = {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2}
    here = machine(tmp_path, files | limits("sys/fs/cgroup", limit=str(4 * GIB), used=4 * GIB, stat=stat))
    assert room(here).bytes == 3 * GIB


def test_container_of_version_1_sees_its_own_folder_only(tmp_path):
    files = {"proc/self/cgroup": "4:memory:/docker/abc\n0::/\n", "proc/self/mountinfo": V1.format("/docker/abc")}
    here = machine(tmp_path, files | limits("sys/fs/cgroup/memory", limit=str(GIB), used=0, version=1))
    assert room(here).bytes == GIB


def test_no_limit_and_none_of_the_files(tmp_path):
    unlimited = limits("sys/fs/cgroup/memory", limit=str(2**63 - 4096), used=5, version=1)
    files = {"proc/self/cgroup": "4:memory:/\n", "proc/self/mountinfo": V1.format("/")}
    assert room(machine(tmp_path / "a", files | unlimited)).limited_by == "the machine's memory"
    assert room(machine(tmp_path / "b", {})).bytes == 8 * GIB


def test_strict_overcommit(tmp_path):
    here = machine(tmp_path, {"proc/sys/vm/overcommit_memory": "2\n"})
    assert room(here).bytes == 2 * GIB and "overcommit" in room(here).limited_by


# --- checks in processes of their own --------------------------------------------------------------------------------


def test_check_that_raises_and_one_that_dies_are_told():
    import os

    outcomes = run_all({"a": lambda: 1 / 0, "b": lambda: os._exit(3), "c": lambda: ({"x": 1}, [])}, 20.0)
    assert outcomes["a"] == NoOutcome("ZeroDivisionError: division by zero")
    assert outcomes["b"] == NoOutcome("its process died") and outcomes["c"] == ({"x": 1}, [])


def test_check_with_a_large_answer():
    assert run_all({"a": lambda: ({"x": "y" * 300_000}, [])}, 20.0)["a"][0]["x"] == "y" * 300_000


# --- for other parts of DeadPool -------------------------------------------------------------------------------------


def test_preflight(tmp_path):
    assert exit_code(preflight(run_dir=tmp_path).findings) is ExitCode.FINE
    (found,) = [each for each in preflight(arena_bytes=10**15).findings if each.kind is FindingKind.FINDING]
    assert found.check == "memory"


def test_reports_of_several_machines_compared():
    texts = [
        (node, json.dumps({"nodes": [report("localhost", torch=version).to_json()]}))
        for node, version in (("a", "2.13"), ("b", "2.13"), ("c", "2.12"))
    ]
    found = compared([*texts, ("d", "bash: deadpool: command not found\n")])
    assert [(each.node, each.kind) for each in found] == [("d", FindingKind.UNKNOWN), ("c", FindingKind.FINDING)]
    assert "command not found" in found[0].what
