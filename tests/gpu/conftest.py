from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def warm_device() -> None:
    """What CUDA opens on first use stays open: descriptors that a test would seem to leave behind."""
    if torch.cuda.is_available():
        weight = torch.ones(64, 64, device="cuda", requires_grad=True)
        (weight @ weight).sum().backward()
        torch.cuda.synchronize()
