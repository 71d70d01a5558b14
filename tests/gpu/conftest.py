"""Tests with a real device. Jobs are built like those of tests/e2e."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from deadpool.control.trainers.fork_client import SharedForkServer

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture(scope="session", autouse=True)
def warm() -> None:
    """What CUDA opens on first use stays open: descriptors that a test would seem to leave behind."""
    if torch.cuda.is_available():
        from unprotected import start_forkserver

        start_forkserver()
        weight = torch.ones(64, 64, device="cuda", requires_grad=True)
        (weight @ weight).sum().backward()
        torch.cuda.synchronize()
        with contextlib.suppress(torch.OutOfMemoryError):  # the message of such an error opens the device once more
            torch.empty(1 << 50, device="cuda")


@pytest.fixture(scope="session")
def fork_server() -> Iterator[SharedForkServer]:
    """For all jobs of the session: torch is imported once."""
    shared = SharedForkServer()
    yield shared
    shared.close()
