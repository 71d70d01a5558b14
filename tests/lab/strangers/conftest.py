from __future__ import annotations

from collections.abc import Iterator

import pytest

from deadpool_lab.strangers.references import SharedProcesses


@pytest.fixture(scope="session")
def shared() -> Iterator[SharedProcesses]:
    """For all scripts: torch is imported once, and the agent too."""
    shared = SharedProcesses()
    yield shared
    shared.close()
