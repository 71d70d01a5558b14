"""Faults of memory and disks.

`DamageHome` and `DamageCopy`: Flipped bytes in snapshots, and a loss right after it, so that these copies are asked
for.

The node is stopped while its memory is changed: else a slot could be given to its trainer in between, and the damage
would become part of a good snapshot.

`DiskFull`, `DiskReadOnly` and `DiskSlow`: the disk of the run folder takes nothing for a while. No rank is in
danger, and other faults come meanwhile.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
from pathlib import Path

from deadpool.snapshot.arena.slot import HEADER_BYTES, read_seal
from deadpool_lab.chaos.faults.fault import Fault, FaultContext, OnNode, OnTrainer
from deadpool_lab.chaos.surroundings.disk import Disk
from deadpool_lab.chaos.surroundings.network import Network


def damage(agent: int, rank: int) -> int:
    """Flips a byte in every snapshot of `rank` that the agent process has. Returns how many snapshots that are."""
    links = (link for link in Path(f"/proc/{agent}/fd").iterdir() if str(link.readlink()).startswith("/memfd:deadpool"))
    memories = {link.stat().st_ino: link for link in links}  # a mapping keeps a second descriptor of the same memory
    return sum(_damage_memory(link, rank) for link in memories.values())


def _damage_memory(link: Path, rank: int) -> int:
    with link.open("r+b", buffering=0) as file, mmap.mmap(file.fileno(), 0) as memory:
        page = os.sysconf("SC_PAGE_SIZE")
        starts = [start for start in range(0, len(memory), page) if _holds(memory, start, rank)]
        for start in starts:
            memory[start + HEADER_BYTES] ^= 0xFF
        return len(starts)


def _holds(memory: mmap.mmap, start: int, rank: int) -> bool:
    with memoryview(memory) as whole, whole[start : start + HEADER_BYTES] as header:
        seal = read_seal(header)
    return seal is not None and seal.rank == rank


def _damage_stopped(context: FaultContext, node: str, rank: int) -> None:
    context.processes.stop_node(node)
    try:
        with contextlib.suppress(FileNotFoundError, PermissionError):  # it has just ended
            damage(context.processes.agent(node), rank)
    finally:
        context.processes.resume_node(node)


class DamageHome(OnTrainer):
    """A trainer is killed whose node has the nearest copy, and that copy is damaged."""

    kind = "damage_home"
    node: str

    def aim(self, context: FaultContext) -> bool:
        if not super().aim(context):
            return False
        self.node = next(node for node, trainers in context.view.trainers.items() if self.trainer in trainers)
        self.endangered = frozenset([self.node])
        return self.trainer.rank is not None

    def inject(self, context: FaultContext) -> None:
        assert self.trainer.rank is not None
        _damage_stopped(context, self.node, self.trainer.rank)
        context.processes.signal(self.trainer.pid, signal.SIGKILL)


class DamageCopy(OnNode):
    """A node is killed, and one of its holders has damaged copies of its ranks."""

    kind = "damage_copy"
    holders = 2
    holder: str

    def aim(self, context: FaultContext) -> bool:
        if not super().aim(context):
            return False
        holders = [node for node in context.view.holders.get(self.target, ()) if context.processes.is_alive(node)]
        if len(holders) < 2 or not context.view.trainers.get(self.target):
            return False  # another holder has to have a good copy
        self.holder = self.pick_other(holders)
        self.endangered = frozenset([self.target, self.holder])
        return True

    @property
    def described(self) -> str:
        return f"{self.target}, held by {self.holder}"

    def inject(self, context: FaultContext) -> None:
        for trainer in context.view.trainers[self.target]:
            if trainer.rank is not None:
                _damage_stopped(context, self.holder, trainer.rank)
        context.processes.kill_node(self.target)

    def is_over(self, context: FaultContext) -> bool:
        return self.target not in context.view.members


_LONG_S, _SHORT_S = 20.0, 5.0


class _OnDisk(Fault):
    in_background = True

    @classmethod
    def is_possible(cls, network: Network, disk: Disk) -> bool:
        return not disk.cannot_fail

    def aim(self, context: FaultContext) -> bool:
        self.target = "the run folder"
        drawn_s = _LONG_S if self.intent.long or context.timing.one_by_one else _SHORT_S
        self.lasts_s = drawn_s if context.timing.disk_s is None else context.timing.disk_s
        return context.disk is not None and context.disk.is_sound

    def is_over(self, context: FaultContext) -> bool:
        """All that has waited in memory is written."""
        return not context.view.storage_waits


class DiskFull(_OnDisk):
    kind = "disk_full"
    weight = 2

    def inject(self, context: FaultContext) -> None:
        assert context.disk is not None
        context.disk.fill()

    def end(self, context: FaultContext) -> None:
        assert context.disk is not None
        context.disk.empty()


class DiskReadOnly(_OnDisk):
    """Files that are opened or made get EROFS, and those that are open for writing already EPERM: the kernel does not
    remount a disk with such files."""

    kind = "disk_read_only"

    def inject(self, context: FaultContext) -> None:
        assert context.disk is not None
        context.disk.make_read_only()

    def end(self, context: FaultContext) -> None:
        assert context.disk is not None
        context.disk.make_writable()


class DiskSlow(_OnDisk):
    """Nothing fails: each write waits until the end of the fault, and so does the end of a process that was killed in
    it, as with a server of files that does not answer."""

    kind = "disk_slow"

    def inject(self, context: FaultContext) -> None:
        assert context.disk is not None
        context.disk.hold_up()

    def end(self, context: FaultContext) -> None:
        assert context.disk is not None
        context.disk.go_on()


FAULTS: tuple[type[Fault], ...] = (
    DamageHome,
    DamageCopy,
    DiskFull,
    DiskReadOnly,
    DiskSlow,
)
