from __future__ import annotations

import pytest
from command import look_around


@pytest.fixture(autouse=True)
def knows_what_was_there_before() -> None:
    look_around()
