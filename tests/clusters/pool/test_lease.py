"""The lock of a machine: one process at a time has it, and no dead one keeps it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from deadpool.host.private_files import ProcessLock

HOLD = """
import sys, time
from pathlib import Path
from deadpool.host.private_files import ProcessLock
lease = ProcessLock(Path(sys.argv[1]), "job other")
print(lease.take(), flush=True)
time.sleep(600)
"""


def test_one_process_at_a_time_has_the_lease(tmp_path: Path) -> None:
    one, other = (ProcessLock(tmp_path / "lease", f"job {name}") for name in "ab")
    assert (one.find_owner(), other.find_owner()) == (None, None)
    assert one.take() is None and one.take() is None
    assert (one.find_owner(), other.find_owner(), other.take()) == (None, "job a", "job a")
    one.release()
    assert other.find_owner() is None and other.take() is None
    one.close()
    other.close()


def test_looking_keeps_nobody_from_the_lease(tmp_path: Path) -> None:
    looking, taking = (ProcessLock(tmp_path / "lease", f"job {name}") for name in "ab")
    for _ in range(1000):
        assert looking.find_owner() is None and taking.take() is None
        taking.release()
    looking.close()
    taking.close()


def test_the_lease_of_a_killed_process_is_free_at_once(tmp_path: Path) -> None:
    lease = ProcessLock(tmp_path / "lease", "job a")
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path / "lease"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"None\n"
        assert lease.take() == "job other"
        os.kill(process.pid, signal.SIGKILL)
    assert lease.take() is None
    lease.close()


def test_a_lease_is_no_other_users_business(tmp_path: Path) -> None:
    lease = ProcessLock(tmp_path / "machine" / "lease", "job a")
    assert (tmp_path / "machine" / "lease").stat().st_mode & 0o077 == 0
    lease.close()
