"""A rank's load from a damaged checkpoint: whatever is wrong, the agent hears of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoint_maker import name_of, write_whole

from deadpool.control.durable.checkpoint_files import CheckpointLoad
from deadpool.durable.shards import data_path, part_path, record_path
from deadpool.durable.store import DirectoryStore
from deadpool.protocol.effects import FetchCopy
from deadpool.protocol.identity import Generation
from deadpool.protocol.inputs import Fetched, FetchFailed
from deadpool.protocol.messages import Copy, Fetch, SlotRef
from deadpool.snapshot.arena.arena import Segment


def load(where: Path, copy: Copy) -> Any:
    """What the agent hears."""
    segment = Segment.create("read", copy.geometry, 1)
    heard: list[Any] = []
    effect = FetchCopy(
        generation=Generation(1, 1),
        rank=copy.seal.rank,
        slot=SlotRef(segment=0, index=0),
        fetch=Fetch(copy=copy, groups=(), fallback=name_of(3)),
    )
    CheckpointLoad(effect, segment.slot(0), heard.append).run(str(where))
    segment.close()
    (only,) = heard
    return only


@pytest.mark.parametrize("path", [part_path(0), data_path(0), record_path(0)])
def test_file_is_damaged_or_gone(path, tmp_path):
    copies = write_whole(DirectoryStore(tmp_path), str(tmp_path), 3)
    assert isinstance(load(tmp_path, copies[0]), Fetched)
    file = tmp_path / name_of(3) / path
    whole = file.read_bytes()
    outcomes = []
    for place in range(0, len(whole), max(1, len(whole) // 60)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x81]) + whole[place + 1 :])
        outcomes.append(load(tmp_path, copies[0]))
    for damaged in (b"", whole[: len(whole) // 2]):
        file.write_bytes(damaged)
        assert isinstance(load(tmp_path, copies[0]), FetchFailed)
    file.unlink()
    outcomes.append(gone := load(tmp_path, copies[0]))
    failures = [outcome for outcome in outcomes if isinstance(outcome, FetchFailed)]
    assert gone in failures and len(failures) > 1  # most bytes of such small data files are of no tensor
    assert all(failure.reason.startswith(f"checkpoint {name_of(3)}: ") for failure in failures)
