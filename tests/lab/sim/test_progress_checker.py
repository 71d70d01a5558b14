"""A job that ends without progress is excused only where nothing was there that it could have gone on from."""

from __future__ import annotations

import pytest

from deadpool_lab.sim import streams
from deadpool_lab.sim.arena import Blocks
from deadpool_lab.sim.profiles import BY_NAME
from deadpool_lab.sim.run import run_seed
from deadpool_lab.sim.streams import CopyStreams


@pytest.mark.parametrize("profile, seed", [("anything", 38), ("coded", 37)])
def test_job_that_ends_beside_intact_copies_is_noticed(
    profile: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No source gives anything, although nothing is wrong with it."""
    monkeypatch.setattr(streams, "read_blocks", lambda world, target, effect, generation: Blocks())
    monkeypatch.setattr(CopyStreams, "_read", lambda self, machine, source, version, generation: None)
    result = run_seed(seed, profile=BY_NAME[profile])
    assert result.violation is not None and result.violation.startswith("(g) the job ends, since no source gave")
