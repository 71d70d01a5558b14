from __future__ import annotations

from collections.abc import Iterator

import pytest

from deadpool.chaos.strangers.shared_processes import Workshop


@pytest.fixture(scope="session")
def workshop() -> Iterator[Workshop]:
    """For all scripts: torch is imported once, and the agent too."""
    shared = Workshop()
    yield shared
    shared.close()
