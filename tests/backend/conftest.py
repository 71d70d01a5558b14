"""Children of these tests are forked from a process that has torch loaded already."""

import os

import pytest
from backend_fleet import start_forkserver

# torch looks up the name of each peer that a TCPStore talks to; a lost answer of the name server costs 5 s.
os.environ["RES_OPTIONS"] = "attempts:0"


@pytest.fixture(scope="session", autouse=True)
def forkserver() -> None:
    """Begins before the first test is looked after, and ends with this process."""
    start_forkserver()
