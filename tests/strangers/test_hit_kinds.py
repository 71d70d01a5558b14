"""Kinds of scripts under real kills: each is exact, or its rule was named before the first fault."""

from __future__ import annotations

import pytest

from deadpool.chaos.strangers.generate import generate
from deadpool.chaos.strangers.kinds.all_kinds import KINDS
from deadpool.chaos.strangers.trial import ScriptTrial
from deadpool.cli.job_client import ask

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

SEED = 3
_SMALL = "odd", 15  # two ranks, one fault


def test_a_kind(tmp_path, shared):
    kind, number = _SMALL
    result = ScriptTrial(generate(SEED, number, kind), tmp_path / "trial", shared, ask).run()
    assert result.result == "exact", result.problems
    assert result.hit and not result.missed


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind(kind, tmp_path, shared):
    result = ScriptTrial(generate(SEED, 0, kind.name), tmp_path / "trial", shared, ask).run()
    assert result.is_good, result.problems
    assert result.hit or result.result == "refused"
