"""Counters and figures that the kernel keeps in /proc and /sys: memory errors, network errors, memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from deadpool.host import host_memory
from deadpool.protocol.health import CORRECTABLE, LINK_ERRORS, LINK_RESETS, OOM, UNCORRECTABLE

_NET = "sys/class/net"
_EDAC = "sys/devices/system/edac/mc"


def counters(root: Path) -> Iterator[tuple[str, str, int]]:
    """Kind, source and total. Sources come and go, and begin at 0 again when a device is reset."""
    for controller in _folders(root / _EDAC, "mc*"):
        yield CORRECTABLE, str(controller), _number(controller / "ce_count")
        yield UNCORRECTABLE, str(controller), _number(controller / "ue_count")
    for card in _folders(root / _NET, "*"):
        if _exists(card / "device"):  # not a bridge, which loses its carrier when the last container has ended
            errors = sum(_number(card / "statistics" / name) for name in ("rx_errors", "tx_errors"))
            yield LINK_ERRORS, str(card), errors
            yield LINK_RESETS, str(card), _number(card / "carrier_down_count")
    yield OOM, "vmstat", _oom_kills(root)


def pressure(root: Path) -> float | None:
    """The share of the last minute, in percent, in which all processes waited for memory. None: not told."""
    for line in _text(root / "proc/pressure/memory").splitlines():
        words = line.split()
        if words[:1] == ["full"]:
            figures = dict(word.split("=") for word in words[1:])
            with contextlib.suppress(KeyError, ValueError):
                return float(figures["avg60"])
    return None


def memory(root: Path) -> tuple[int, int] | None:
    """All of it and what is left, in bytes, by the tightest of the machine's and the cgroups' limits."""
    try:
        total, room = host_memory.meminfo(root)["MemTotal"], host_memory.room(root)
    except (OSError, KeyError, ValueError):
        return None
    limits = [limit for each in host_memory.cgroup_rooms(root) if (limit := each.limit_bytes)]
    return min([total, *limits]), room.bytes


def _oom_kills(root: Path) -> int:
    for line in _text(root / "proc/vmstat").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def _folders(parent: Path, pattern: str) -> list[Path]:
    try:
        return sorted(parent.glob(pattern))
    except OSError:
        return []


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _number(path: Path) -> int:
    try:
        return int(_text(path).strip() or 0)
    except ValueError:
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
