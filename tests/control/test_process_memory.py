"""What a process takes of the host's memory for itself."""

from __future__ import annotations

import mmap
import os

from deadpool.control.trainers.process_memory import private_bytes

MANY = 64 << 20


def test_what_it_writes_counts_and_what_it_shares_does_not(tmp_path):
    before = private_bytes(os.getpid())
    with mmap.mmap(-1, MANY, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as own:
        own.write(bytes(MANY))
        after = private_bytes(os.getpid())
    assert before is not None and after is not None and after - before >= 0.9 * MANY


def test_a_process_that_has_ended_takes_nothing(tmp_path):
    assert private_bytes(1, tmp_path) is None


def test_fields_are_added_up(tmp_path):
    (tmp_path / "7").mkdir()
    lines = ["Rss: 900 kB", "Shared_Clean: 500 kB", "Private_Clean: 1 kB", "Private_Dirty: 2 kB", "Swap: 4 kB"]
    (tmp_path / "7" / "smaps_rollup").write_text("\n".join(lines))
    assert private_bytes(7, tmp_path) == 7 * 1024
