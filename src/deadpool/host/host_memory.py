"""How much memory this process may still take: the machine's, its cgroups' (version 1 or 2), or what may be committed.

A cgroup's limit holds for all below it, so each one from this process's own up to the root of what is mounted counts.
Page cache counts as used there and is given back when memory is short, so it is room.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED = 1 << 60  # version 1 says "no limit" with a number near 2 ** 63
_STRICT = "2"  # of vm.overcommit_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    bytes: int
    limited_by: str  # in words
    limit_bytes: int = 0  # of the cgroup; 0: not one of a cgroup


@dataclass(frozen=True, slots=True)
class _Names:
    limit: str
    used: str
    cache: tuple[str, ...]  # in memory.stat


_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_V2 = _Names("memory.max", "memory.current", ("inactive_file", "active_file"))


def room(root: Path = Path("/")) -> Room:
    """The tightest of all bounds. `root` is where /proc and /sys lie."""
    figures = meminfo(root)
    bounds = [Room(bytes=figures["MemAvailable"], limited_by="the machine's memory")]
    bounds += cgroup_rooms(root)
    if _read(root / "proc/sys/vm/overcommit_memory").strip() == _STRICT:
        left = figures.get("CommitLimit", 0) - figures.get("Committed_AS", 0)
        bounds.append(Room(bytes=max(0, left), limited_by="vm.overcommit_memory=2"))
    return min(bounds, key=lambda bound: bound.bytes)


def meminfo(root: Path = Path("/")) -> dict[str, int]:
    """Returns the figures in bytes; counts of huge pages as they are."""
    figures = {}
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        number, *unit = value.split()
        figures[name] = int(number) * (1024 if unit else 1)
    return figures


def cgroup_rooms(root: Path = Path("/")) -> Iterator[Room]:
    """One for each cgroup that has a limit and that this process is in, also by an ancestor."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield from _along(root, "cgroup2", "", path, _V2)
        elif "memory" in controllers.split(","):
            yield from _along(root, "cgroup", "memory", path, _V1)


def _along(root: Path, kind: str, controller: str, path: str, names: _Names) -> Iterator[Room]:
    for mount, top in _mounts(root, kind, controller):
        # In a container the mount may begin at this process's own cgroup, whose path is told from the host's root.
        inside = Path(path).relative_to(top) if Path(path).is_relative_to(top) else Path()
        for folder in (mount / inside, *(mount / inside).parents):
            if (found := _room_of(folder, names)) is not None:
                yield found
            if folder == mount:
                break


def _mounts(root: Path, kind: str, controller: str) -> Iterator[tuple[Path, Path]]:
    """Where that hierarchy is mounted, and which of its folders is there."""
    for line in _read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, (found, _, options) = before.split(), (*after.split(), "", "", "")[:3]
        if found == kind and (not controller or controller in options.split(",")):
            yield root / fields[4].lstrip("/"), Path(fields[3])


def _room_of(folder: Path, names: _Names) -> Room | None:
    try:
        limit = _read(folder / names.limit).strip()
        if not limit or limit == "max" or int(limit) >= _UNLIMITED:
            return None
        cache = sum(_stat(folder).get(name, 0) for name in names.cache)
        left = int(limit) - max(0, int(_read(folder / names.used)) - cache)
        return Room(
            bytes=max(0, left),
            limited_by=f"the limit of the cgroup {folder} ({int(limit) / 2**30:.2f} GiB)",
            limit_bytes=int(limit),
        )
    except ValueError:
        return None


def _stat(folder: Path) -> dict[str, int]:
    pairs = (line.split() for line in _read(folder / "memory.stat").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
