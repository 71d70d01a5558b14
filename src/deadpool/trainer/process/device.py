"""Chooses the device of this process, checks whether it still works, and waits for its work. Callers act on the answer.

After an illegal access or a failed assert on the device, every call of this process to CUDA raises the error, and only
another process can use the device again. So the device itself is queried. The text of an exception would not tell: a
lost peer, the script itself, or a lack of memory that the process can survive may have caused it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Protocol

import torch

from deadpool.errors import ConfigError


class DeviceStream(Protocol):
    def query(self) -> bool: ...


class Device(Protocol):
    """The part of torch.cuda that is used here."""

    def is_initialized(self) -> bool: ...
    def current_stream(self) -> DeviceStream: ...


def what_broke(device: Device = torch.cuda) -> str | None:
    """The error that every call raises; None: the device works, or was never used. Returns at once."""
    if not device.is_initialized():
        return None
    try:
        device.current_stream().query()  # a busy device is no error
    except RuntimeError as error:  # torch.AcceleratorError, where torch has it, is one
        return str(error).strip().partition("\n")[0]  # the lines that follow are advice
    return None


def drain() -> None:
    """Waits until work that was enqueued before an abort has ended: its garbage must not overwrite restored state."""
    if torch.cuda.is_initialized():
        with contextlib.suppress(RuntimeError):  # a broken device is reported by what_broke()
            torch.cuda.synchronize()


def use_device(given: torch.device | int) -> torch.device | None:
    """Makes it the current device of this thread and returns it, if it is a CUDA device with an index."""
    device = torch.device("cuda", given) if isinstance(given, int) else torch.device(given)
    if device.type == "cuda" and device.index is not None and torch.cuda.is_available():
        torch.cuda.set_device(device.index)
        return device
    return None


def require_current_device(devices: Iterable[torch.device]) -> None:
    """ConfigError: all CUDA tensors are on one device, and it is not the current one, which would make the copies."""
    used = {device.index for device in devices if device.type == "cuda"}
    if len(used) == 1 and used != {current := torch.cuda.current_device()}:
        [index] = used
        raise ConfigError(
            f"the protected parameters are on cuda:{index}, but the current device is cuda:{current}: call "
            f"torch.cuda.set_device({index}) before protect()"
        )
