"""Whether a device is broken is what the device says, not what an exception says."""

from __future__ import annotations

import pytest
import torch

from deadpool.trainer.process.environment import what_broke

ASSERT = """CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1"""


class TwinDevice:
    """Of torch.cuda: idle, busy, or poisoned by `error`."""

    def __init__(self, *, used: bool = True, busy: bool = False, error: Exception | None = None) -> None:
        self._used, self._busy, self._error = used, busy, error

    def is_initialized(self) -> bool:
        return self._used

    def current_stream(self) -> TwinDevice:
        return self

    def query(self) -> bool:
        if self._error is not None:
            raise self._error
        return not self._busy


@pytest.mark.parametrize("busy", [False, True])
def test_device_that_works(busy):
    assert what_broke(TwinDevice(busy=busy)) is None


def test_device_that_was_never_used_is_not_touched():
    assert what_broke(TwinDevice(used=False, error=RuntimeError(ASSERT))) is None


def test_poisoned_device_gives_its_error_without_the_advice():
    assert what_broke(TwinDevice(error=RuntimeError(ASSERT))) == "CUDA error: device-side assert triggered"


@pytest.mark.skipif(not hasattr(torch, "AcceleratorError"), reason="this torch has no AcceleratorError")
def test_poisoned_device_whose_torch_has_an_error_of_its_own():
    assert what_broke(TwinDevice(error=torch.AcceleratorError(ASSERT))) == "CUDA error: device-side assert triggered"


def test_machine_without_a_device():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert what_broke() is None
