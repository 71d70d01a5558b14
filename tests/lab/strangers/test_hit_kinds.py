"""Kinds of scripts under real kills: each is exact, or its rule was named before the first fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from waiting import LIMIT_S

from deadpool.cli.job_client import ask
from deadpool_lab.strangers.generate import Script, generate
from deadpool_lab.strangers.kinds import KINDS
from deadpool_lab.strangers.references import SharedProcesses
from deadpool_lab.strangers.trial import ScriptTrial

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(6000)]

SEED = 3
_SMALL = "odd", 15  # two ranks, one fault
_LONG = ("hang_timeout_s", "unwind_timeout_s", "connect_timeout_s", "prepare_timeout_s", "spare_wait_s")
_TIMEOUTS = {"node_timeout_s": 10.0, "isolation_timeout_s": LIMIT_S, **dict.fromkeys(_LONG, LIMIT_S)}


def trial(script: Script, folder: Path, shared: SharedProcesses) -> ScriptTrial:
    """The own timeouts of trials are for quiet machines: here they bound only what fails."""
    return ScriptTrial(script, folder / "trial", shared, ask, limit_s=2 * LIMIT_S, timeouts=_TIMEOUTS)


@pytest.mark.thorough
def test_a_kind(tmp_path, shared):
    kind, number = _SMALL
    result = trial(generate(SEED, number, kind), tmp_path, shared).run()
    assert result.result == "exact", result.problems
    assert result.hit and not result.missed


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind(kind, tmp_path, shared):
    result = trial(generate(SEED, 0, kind.name), tmp_path, shared).run()
    assert result.is_good, result.problems
    assert result.hit or result.result == "refused"
