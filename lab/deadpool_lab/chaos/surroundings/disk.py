"""The disk of a run folder under faults: a small one of its own, which is filled, made read-only and held up.

`LoopDisk` is an ext4 file system in memory, behind a loop device. This process moves into a mount namespace of its own,
and the memory has no name: whatever happens, the kernel takes both away with the last process. `SharedDisk` is for
users without that privilege: the run folder lies where all files lie, and nothing can be done to that disk.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from deadpool.errors import ConfigError
from deadpool.host.child_processes import leave_mounts
from deadpool_lab.chaos.surroundings.processes import MARK_VARIABLE

_BYTES = 64 << 20
_BALLAST = "ballast"
_COMMAND_S = 20.0
_TOOLS = ("mount", "umount", "mkfs.ext4", "chattr")
_LONGEST_S = 60.0
"""A disk that is held up goes on after that by itself, even if this process waits for that very disk."""

_FREEZE = """
import fcntl, os, select, sys
disk = os.open(sys.argv[1], os.O_RDONLY)
fcntl.ioctl(disk, 0xC0045877, 0)  # FIFREEZE
os.write(1, b"frozen")
select.select([0], [], [], float(sys.argv[2]))  # until the owner closes the pipe or dies
fcntl.ioctl(disk, 0xC0045878, 0)  # FITHAW
"""


class Disk(Protocol):
    cannot_fail: str  # why faults of the disk are impossible here; empty: they are possible
    harms: int  # how often something was done to it

    @property
    def is_sound(self) -> bool:
        """Nothing is being done to it."""

    def mount(self, folder: Path) -> None:
        """Makes the folder, whose files lie on this disk from now on."""

    def unmount(self) -> None:
        """The files that it had are in the folder afterwards."""

    def fill(self) -> None:
        """Fills the disk to the last byte."""

    def empty(self) -> None: ...

    def make_read_only(self) -> None: ...

    def make_writable(self) -> None: ...

    def hold_up(self) -> None:
        """Whatever is written from now on waits."""

    def go_on(self) -> None: ...

    def heal(self) -> None:
        """Ends whatever is being done to it."""

    def left_behind(self) -> list[str]: ...


class SharedDisk:
    is_sound = True
    harms = 0

    def __init__(self, reason: str) -> None:
        self.cannot_fail = reason

    def mount(self, folder: Path) -> None:
        folder.mkdir(parents=True)

    def unmount(self) -> None:
        pass

    def _refuse(self) -> None:
        raise ConfigError(f"the disk of the run folder cannot be made to fail: {self.cannot_fail}")

    fill = empty = make_read_only = make_writable = hold_up = go_on = _refuse

    def heal(self) -> None:
        pass

    def left_behind(self) -> list[str]:
        return []


class LoopDisk:
    cannot_fail = ""

    def __init__(self) -> None:
        self._name = f"deadpool-disk-{secrets.token_hex(4)}"
        self._folder: Path | None = None
        self._root: int | None = None  # the folder on this disk, whatever is mounted over it
        self._freezer: subprocess.Popen[bytes] | None = None
        self._is_read_only = False
        self.harms = 0

    @property
    def is_sound(self) -> bool:
        assert self._folder is not None
        return self._freezer is None and not self._is_read_only and not (self._folder / _BALLAST).exists()

    def mount(self, folder: Path) -> None:
        """Raises OSError or CalledProcessError where the kernel has no loop devices."""
        folder.mkdir(parents=True)
        memory = os.memfd_create(self._name)
        try:
            os.ftruncate(memory, _BYTES)
            image = f"/proc/{os.getpid()}/fd/{memory}"
            _call("mkfs.ext4", "-q", "-m", "0", image)  # no blocks that only root may fill
            _call("mount", "-o", "loop,noatime", image, str(folder))
        finally:
            os.close(memory)
        (folder / "lost+found").rmdir()
        self._folder, self._root = folder, os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def unmount(self) -> None:
        assert self._folder is not None and self._root is not None
        self.heal()
        copy = self._folder.with_name(f"{self._folder.name}.copy")
        shutil.copytree(self._folder, copy)
        os.close(self._root)
        try:
            _call("umount", str(self._folder))
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            _call("umount", "--lazy", str(self._folder))  # it is in use: its loop device is told as left behind
        self._folder.rmdir()
        copy.rename(self._folder)
        self._folder = self._root = None

    def fill(self) -> None:
        assert self._folder is not None
        self.harms += 1
        with contextlib.suppress(OSError), (self._folder / _BALLAST).open("wb", buffering=0) as file:
            room = os.statvfs(self._folder)
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize)
            file.seek(0, os.SEEK_END)
            while True:
                file.write(bytes(1024))

    def empty(self) -> None:
        assert self._folder is not None
        (self._folder / _BALLAST).unlink()

    def make_read_only(self) -> None:
        """The kernel refuses to remount a disk on which files are open for writing. So a read-only view of the folder
        is mounted over it, and files that are open are made immutable."""
        self.harms += 1
        _call("mount", "-o", "bind,ro", str(self._folder), str(self._folder), tries=20)
        self._is_read_only = True
        self._change_attributes("+i")

    def make_writable(self) -> None:
        self._change_attributes("-i")
        _call("umount", "--lazy", str(self._folder))
        self._is_read_only = False

    def _change_attributes(self, change: str) -> None:
        command = ["chattr", "-R", "-f", change, f"/proc/{os.getpid()}/fd/{self._root}/"]
        subprocess.run(command, capture_output=True, timeout=_COMMAND_S)  # a file may go meanwhile

    def hold_up(self) -> None:
        """A process of its own does it, which goes on when this one has died: a disk that is held up stays for ever. It
        has no mark, so that it is not ended before."""
        self.harms += 1
        command = [sys.executable, "-I", "-c", _FREEZE, str(self._folder), str(_LONGEST_S)]
        variables = {name: value for name, value in os.environ.items() if name != MARK_VARIABLE}
        self._freezer = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables, start_new_session=True
        )
        assert self._freezer.stdout is not None
        if not self._freezer.stdout.read(1):
            raise OSError("the disk of the run folder cannot be held up")

    def go_on(self) -> None:
        freezer, self._freezer = self._freezer, None
        assert freezer is not None
        freezer.communicate(timeout=_COMMAND_S)

    def heal(self) -> None:
        if self._freezer is not None:
            self.go_on()
        if self._is_read_only:
            self.make_writable()
        if not self.is_sound:
            self.empty()

    def left_behind(self) -> list[str]:
        backing = Path("/sys/block").glob("loop*/loop/backing_file")
        return [f"loop device {path.parts[3]}" for path in backing if self._name in path.read_text()]


def open_disk() -> Disk:
    """Call it before this process has other threads."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        return SharedDisk(f"{', '.join(missing)} missing" if missing else "that needs root")
    try:
        leave_mounts()
        return _tried(LoopDisk())
    except (OSError, subprocess.SubprocessError) as error:
        return SharedDisk(f"no loop device can be mounted ({error})")


def _tried(disk: LoopDisk) -> LoopDisk:
    from deadpool.control.launch.folder_lock import temporary_folder

    with temporary_folder("deadpool-chaos-disk-") as folder:
        disk.mount(folder / "disk")
        disk.hold_up()
        disk.unmount()
    return disk


def _call(*command: str, tries: int = 1) -> None:
    for left in reversed(range(tries)):
        done = subprocess.run(command, capture_output=True, timeout=_COMMAND_S)
        if done.returncode == 0:
            return
        if not left:
            done.check_returncode()
