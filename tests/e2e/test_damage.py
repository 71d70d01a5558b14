"""Bytes that are not what they were: the digest of the lost rank says so, and another copy is used."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from deadpool.snapshot.arena.slot import HEADER_BYTES, read_seal


def damage_copies(agent: int, rank: int, behind_bytes: int = 0) -> list[int]:
    """Flips a byte in every snapshot of `rank` that the agent process holds, so far behind the header; of which
    versions."""
    links = (link for link in Path(f"/proc/{agent}/fd").iterdir() if str(link.readlink()).startswith("/memfd:deadpool"))
    memories = {link.stat().st_ino: link for link in links}  # a mapping keeps a second descriptor of the same memory
    found = []
    for link in memories.values():
        if not link.exists():
            continue  # given up meanwhile: the state has outgrown it
        with link.open("r+b", buffering=0) as file, mmap.mmap(file.fileno(), 0) as memory:
            found += _damage(memory, rank, HEADER_BYTES + behind_bytes)
    return found


def _damage(memory: mmap.mmap, rank: int, place: int) -> list[int]:
    found = []
    for start in range(0, len(memory), os.sysconf("SC_PAGE_SIZE")):
        with memoryview(memory) as whole, whole[start : start + HEADER_BYTES] as header:
            seal = read_seal(header)
        if seal is not None and seal.rank == rank:
            memory[start + place] ^= 0xFF
            found.append(seal.version.number)
    return found


@pytest.mark.thorough
def test_held_copy_damaged_another_one_is_used(make_gated_job, run_and_compare):
    gated = make_gated_job(acts="wait@4:1", nodes=3, holders=2)

    def during():
        gated.await_gate(4)
        gated.await_committed(4)
        first = next(node for node in gated.status()["nodes"] if node["node"] in ("n0", "n2"))
        assert 4 in damage_copies(gated.trial.job.nodes[first["node"]].pid, rank=1)
        gated.kill_node_at_gate("n1", 4)

    run_and_compare(gated, during)
    assert "damaged" in gated.events("source_failed")[0]["reason"]
