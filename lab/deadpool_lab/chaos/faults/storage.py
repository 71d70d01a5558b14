"""The disk of the run folder takes nothing for a while. No rank is in danger, and other faults come meanwhile."""

from __future__ import annotations

from deadpool_lab.chaos.faults.fault import Fault, Scene
from deadpool_lab.chaos.surroundings.disk import Disk
from deadpool_lab.chaos.surroundings.network import Network

_LONG_S, _SHORT_S = 20.0, 5.0


class _OnDisk(Fault):
    in_background = True

    @classmethod
    def is_possible(cls, network: Network, disk: Disk) -> bool:
        return not disk.cannot_fail

    def aim(self, scene: Scene) -> bool:
        self.target = "the run folder"
        drawn_s = _LONG_S if self.intent.long or scene.timing.one_by_one else _SHORT_S
        self.lasts_s = drawn_s if scene.timing.disk_s is None else scene.timing.disk_s
        return scene.disk is not None and scene.disk.is_sound

    def is_over(self, scene: Scene) -> bool:
        """All that has waited in memory is written."""
        return not scene.view.storage_waits


class DiskFull(_OnDisk):
    kind = "disk_full"
    weight = 2

    def inject(self, scene: Scene) -> None:
        assert scene.disk is not None
        scene.disk.fill()

    def end(self, scene: Scene) -> None:
        assert scene.disk is not None
        scene.disk.empty()


class DiskReadOnly(_OnDisk):
    """Files that are opened or made get EROFS, and those that are open for writing already EPERM: the kernel does not
    remount a disk with such files."""

    kind = "disk_read_only"

    def inject(self, scene: Scene) -> None:
        assert scene.disk is not None
        scene.disk.make_read_only()

    def end(self, scene: Scene) -> None:
        assert scene.disk is not None
        scene.disk.make_writable()


class DiskSlow(_OnDisk):
    """Nothing fails: each write waits until the end of the fault, and so does the end of a process that was killed in
    it, as with a server of files that does not answer."""

    kind = "disk_slow"

    def inject(self, scene: Scene) -> None:
        assert scene.disk is not None
        scene.disk.hold_up()

    def end(self, scene: Scene) -> None:
        assert scene.disk is not None
        scene.disk.go_on()


FAULTS: tuple[type[Fault], ...] = (DiskFull, DiskReadOnly, DiskSlow)
