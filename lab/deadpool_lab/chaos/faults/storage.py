"""The disk of the run folder takes nothing for a while. No rank is in danger, and other faults come meanwhile."""

from __future__ import annotations

from deadpool_lab.chaos.faults.fault import Fault, FaultContext
from deadpool_lab.chaos.surroundings.disk import Disk
from deadpool_lab.chaos.surroundings.network import Network

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


FAULTS: tuple[type[Fault], ...] = (DiskFull, DiskReadOnly, DiskSlow)
