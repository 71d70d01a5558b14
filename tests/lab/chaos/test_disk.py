"""A disk of its own for a run folder: what is written to it while it is full, read-only or held up. In a process that
leaves its own mounts."""

from __future__ import annotations

import subprocess
import sys

import pytest
from waiting import LIMIT_S

PROGRAM = """
import os
import sys
import threading
from pathlib import Path
from deadpool_lab.chaos.surroundings.disk import open_disk

disk = open_disk()
if disk.cannot_fail:
    print(disk.cannot_fail)
    sys.exit(77)
run = Path(sys.argv[1]) / "run"
disk.mount(run)
kept = (run / "kept").open("ab", buffering=0)


def error(write):
    try:
        write()
    except OSError as error:
        return type(error).__name__ + " " + str(error.errno)
    return "taken"


def tried():
    assert not disk.is_sound
    opened, made = (error(lambda: kept.write(bytes(5000))), error(lambda: (run / "new").write_bytes(bytes(5000))))
    print("open:", opened, "new:", made)


disk.fill()
tried()
disk.empty()
disk.make_read_only()
tried()
disk.make_writable()
disk.hold_up()
(run / "kept").read_bytes()
writer = threading.Thread(target=kept.write, args=(b"late",))
writer.start()
writer.join(0.5)
print("waits:", writer.is_alive())
disk.go_on()
writer.join()
assert disk.is_sound
for hurt in (disk.fill, disk.make_read_only, disk.hold_up):
    hurt()
    disk.heal()
    assert disk.is_sound
kept.write(b", and written")
assert disk.left_behind(), "it is there while it is used"
kept.close()
disk.unmount()
print("kept:", (run / "kept").read_bytes().lstrip(bytes(1)).decode(), disk.left_behind())
"""


def test_disk_that_fails_and_comes_back(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode == 77:
        pytest.skip(f"needs root, and a file system of its own: {done.stdout}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "open: OSError 28 new: OSError 28",
        "open: PermissionError 1 new: OSError 30",
        "waits: True",
        "kept: late, and written []",
    ]
    assert not (tmp_path / "run" / "ballast").exists()
