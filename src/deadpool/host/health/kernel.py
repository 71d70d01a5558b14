"""What the kernel tells of a node's health: counters and figures in /proc and /sys (memory errors, network errors,
memory), and the lines of its log that speak of broken hardware. Only root may read the log, in most containers nobody.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from deadpool.host import host_memory
from deadpool.protocol.health import CORRECTABLE, LINK_ERRORS, LINK_RESETS, OOM, UNCORRECTABLE, XID

_NET = "sys/class/net"
_EDAC = "sys/devices/system/edac/mc"

LOG = "dev/kmsg"
XID_LINE = re.compile(r"NVRM: Xid \((?P<device>(PCI:)?(?P<bus>[^).]*)[^)]*)\): (?P<number>\d+)")
_RECORD_BYTES = 8192
_STORM = 10
"""What the kernel calls a storm counts as so many errors."""

XIDS_OF_HARDWARE = {
    48: "a double-bit ECC error",
    62: "a halt of its controller",
    64: "a row that could not be remapped",
    74: "an NVLink error",
    79: "that it has fallen off the bus",
    92: "a high rate of ECC errors",
    94: "a contained ECC error",
    95: "an uncontained ECC error",
    119: "a time-out of its system processor",
    120: "an error of its system processor",
    121: "a C2C link error",
    140: "an unrecovered ECC error",
}
"""Others (13, 31, 43, 45) come from a fault of a program as well, and say nothing about the GPU."""


def counters_of(root: Path) -> Iterator[tuple[str, str, int]]:
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


def pressure_of(root: Path) -> float | None:
    """The share of the last minute, in percent, in which all processes waited for memory. None: not told."""
    for line in _text(root / "proc/pressure/memory").splitlines():
        words = line.split()
        if words[:1] == ["full"]:
            figures = dict(word.split("=") for word in words[1:])
            with contextlib.suppress(KeyError, ValueError):
                return float(figures["avg60"])
    return None


def memory_of(root: Path) -> tuple[int, int] | None:
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


@dataclass(frozen=True, slots=True)
class KernelFinding:
    kind: str
    count: int
    detail: str
    bus: str = ""  # of the GPU that it is about, if it is about one


_PATTERNS: tuple[tuple[re.Pattern[str], str, int], ...] = (
    (re.compile(r"Hardware Error.*event severity: (fatal|recoverable)"), UNCORRECTABLE, 1),
    (re.compile(r"mce: Uncorrected hardware memory error|Memory failure: 0x\w+: recovery action"), UNCORRECTABLE, 1),
    (re.compile(r"amdgpu.*[Uu]ncorrectable hardware errors? detected"), UNCORRECTABLE, 1),
    (re.compile(r"CMCI storm detected"), CORRECTABLE, _STORM),
    (re.compile(r"Hardware Error.*(event severity: corrected|[Cc]orrected error)"), CORRECTABLE, 1),
    (re.compile(r"NETDEV WATCHDOG: .*transmit queue"), LINK_RESETS, 1),
    (re.compile(r"mlx5_core.*(device's health compromised|health recovery)"), LINK_RESETS, 1),
    (re.compile(r"(NIC )?Link is Down\b"), LINK_RESETS, 1),
)
"""What EDAC counts, and processes that were killed for lack of memory, are read from counters: a log may be closed."""


def classify(line: str) -> KernelFinding | None:
    if (match := XID_LINE.search(line)) is not None:
        number = int(match["number"])
        if number not in XIDS_OF_HARDWARE:
            return None
        words = f"Xid {number} of {match['device']}: {XIDS_OF_HARDWARE[number]}"
        return KernelFinding(XID, 1, words, match["bus"].lower())
    for pattern, kind, count in _PATTERNS:
        if pattern.search(line) is not None:
            return KernelFinding(kind, count, line.partition(";")[2].strip() or line.strip())
    return None


class KernelLog:
    """Reads what is new since it was opened. A log that appears later is read from its beginning."""

    def __init__(self, root: Path) -> None:
        self._path = root / LOG
        self._descriptor: int | None = None
        self._rest = b""
        self._open(at_end=True)

    def _open(self, *, at_end: bool) -> None:
        with contextlib.suppress(OSError):
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
            if at_end:
                os.lseek(self._descriptor, 0, os.SEEK_END)

    def new_lines(self) -> list[str]:
        if self._descriptor is None:
            self._open(at_end=False)
        if self._descriptor is None:
            return []
        data = self._rest + read_all(self._descriptor)
        whole, _, self._rest = data.rpartition(b"\n")
        return whole.decode(errors="replace").splitlines()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def all_lines(path: Path) -> list[str]:
    data = b""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            data = read_all(descriptor)
        finally:
            os.close(descriptor)
    return data.decode(errors="replace").splitlines()


def read_all(descriptor: int, read: Callable[[int, int], bytes] = os.read) -> bytes:
    """All that is there now. The kernel gives one record at a time."""
    data = b""
    while True:
        try:
            chunk = read(descriptor, _RECORD_BYTES)
        except BlockingIOError:
            return data
        except BrokenPipeError:
            continue  # records were overwritten while we read: the next read goes on after them
        except OSError:
            return data
        if not chunk:
            return data
        data += chunk
