"""The files that agents read the health of their nodes from, written by us: so real agents can be made to look ill.

`--health-root FOLDER/{node}` points each agent to its own. A node looks well until something is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_GIB_KB = 1 << 20
MEMORY_GIB = 64
_WELL = {
    "proc/meminfo": f"MemTotal: {MEMORY_GIB * _GIB_KB} kB\nMemAvailable: {32 * _GIB_KB} kB\n",
    "proc/vmstat": "oom_kill 0\n",
    "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 total=0\n",
    "sys/devices/system/edac/mc/mc0/ce_count": "0\n",
    "sys/devices/system/edac/mc/mc0/ue_count": "0\n",
    "sys/class/net/eth0/statistics/rx_errors": "0\n",
    "sys/class/net/eth0/statistics/tx_errors": "0\n",
    "sys/class/net/eth0/carrier_down_count": "0\n",
    "sys/class/net/eth0/device/vendor": "0x15b3\n",
    "dev/kmsg": "",
}
CORRECTABLE_ERRORS = "sys/devices/system/edac/mc/mc0/ce_count"
UNCORRECTABLE_ERRORS = "sys/devices/system/edac/mc/mc0/ue_count"
LINK_FAILURES = "sys/class/net/eth0/carrier_down_count"
XID = "3,100,1,-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n"


@dataclass(frozen=True, slots=True)
class HealthFiles:
    folder: Path

    @property
    def pattern(self) -> str:
        """The value of --health-root."""
        return str(self.folder / "{node}")

    def make_well(self, node: str) -> None:
        """Writes the files of a node that is well. It has to be called before its agent starts: errors count from its
        first look.
        """
        for name, text in _WELL.items():
            path = self.folder / node / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def count(self, node: str, counter: str, more: int) -> None:
        path = self.folder / node / counter
        draft = path.with_suffix(".draft")
        draft.write_text(f"{int(path.read_text()) + more}\n")
        draft.rename(path)

    def log(self, node: str, line: str) -> None:
        with (self.folder / node / "dev/kmsg").open("a") as file:
            file.write(line)

    def leave_memory(self, node: str, gib: float) -> None:
        """Other processes take all but so much of it."""
        path = self.folder / node / "proc/meminfo"
        draft = path.with_suffix(".draft")
        draft.write_text(f"MemTotal: {MEMORY_GIB * _GIB_KB} kB\nMemAvailable: {int(gib * _GIB_KB)} kB\n")
        draft.rename(path)

    def set_pressure(self, node: str, percent: float) -> None:
        text = f"some avg10=0.00 avg60={percent:.2f} total=1\nfull avg10=0.00 avg60={percent:.2f} total=1\n"
        (self.folder / node / "proc/pressure/memory").write_text(text)
