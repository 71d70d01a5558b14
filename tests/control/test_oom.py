"""A process is gone by SIGKILL: was it the kernel?"""

from __future__ import annotations

from pathlib import Path

from deadpool.control.trainers.process_activity import OomWatch


def counter(path: Path, count: int) -> Path:
    path.write_text(f"low 0\noom 7\noom_kill {count}\noom_group_kill 0\n")
    return path


def test_kernel_has_killed_in_this_cgroup(tmp_path: Path) -> None:
    events = counter(tmp_path / "memory.events", 2)
    watch = OomWatch(((tmp_path / "not there", "elsewhere"), (events, "in this node's cgroup")))
    counter(events, 3)
    assert "out of memory? the kernel killed 1 process for lack of memory in this node's cgroup" in watch.explain(-9)
    assert watch.explain(-9) == "killed by SIGKILL", "that one has been told"


def test_somebody_else_has_killed(tmp_path: Path) -> None:
    watch = OomWatch(((counter(tmp_path / "memory.events", 2), "here"),))
    assert watch.explain(-9) == "killed by SIGKILL"
    assert watch.explain(-6) == "killed by SIGABRT"
    assert watch.explain(3) == "exited with code 3"


def test_machine_without_counters(tmp_path: Path) -> None:
    assert OomWatch(((tmp_path / "not there", "elsewhere"),)).explain(-9) == "killed by SIGKILL"
