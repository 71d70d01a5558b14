"""Writes, lists, verifies and deletes checkpoints in the object store that is named, and tears a write."""

from __future__ import annotations

import sys

from checkpoint_maker import write_whole

from deadpool.durable.manifest import as_checkpoint, complete_ones, faults_of
from deadpool.durable.store import open_store


def main(where: str) -> None:
    store = open_store(where)
    assert store.folders() == []
    for step in (3, 4, 5):
        copies = write_whole(store, where, step, keep_last=2)
    found = complete_ones(store)
    assert [manifest.step for manifest in found] == [5, 4]
    assert faults_of(store, found[0]) == []
    assert as_checkpoint(store, found[0]).copies == copies
    try:
        with store.writing("step-000000009-x/torn") as file:
            file.write(b"half")
            raise KeyError
    except OSError:
        pass
    try:
        store.read("step-000000009-x/torn")
    except FileNotFoundError:
        return
    raise AssertionError("what was torn is there")


main(sys.argv[1])
