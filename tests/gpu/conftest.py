"""Jobs with a real device. They are staged like those of tests/e2e."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deadpool.control.nursery import SharedNursery

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))


@pytest.fixture(scope="session")
def nursery() -> Iterator[SharedNursery]:
    """For all jobs of the session: torch is imported once."""
    shared = SharedNursery()
    yield shared
    shared.close()
