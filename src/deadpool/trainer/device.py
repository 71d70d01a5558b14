"""Which device this process uses, whether it still works, and when it is done. Who asks decides what follows.

An illegal access or a failed assert on the device poisons the CUDA context of the process: from then on every call
gives the error, and only another process can use the device again. So the device itself is asked, not the words of an
exception, which may be a peer's doing, the script's, or a lack of memory that can be survived.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Protocol

import torch

from deadpool.errors import ConfigError


class Stream(Protocol):
    def query(self) -> bool: ...


class Device(Protocol):
    """What is needed of torch.cuda."""

    def is_initialized(self) -> bool: ...
    def current_stream(self) -> Stream: ...


def what_broke(device: Device = torch.cuda) -> str | None:
    """The error that every call gives; None: the device works, or was never used. Waits for nothing."""
    if not device.is_initialized():
        return None
    try:
        device.current_stream().query()  # busy is no error
    except RuntimeError as error:  # torch.AcceleratorError, where torch has it, is one
        return str(error).strip().partition("\n")[0]  # what follows is advice
    return None


def drain() -> None:
    """What was enqueued before an abort ends, as garbage, before anything is put in its place."""
    if torch.cuda.is_initialized():
        with contextlib.suppress(RuntimeError):  # broken: whoever asks will be told
            torch.cuda.synchronize()


def use_device(given: torch.device | int) -> None:
    """Makes it the current one of this thread, if it is one of CUDA's and says which."""
    device = torch.device("cuda", given) if isinstance(given, int) else torch.device(given)
    if device.type == "cuda" and device.index is not None and torch.cuda.is_available():
        torch.cuda.set_device(device.index)


def require_current_device(devices: Iterable[torch.device]) -> None:
    """ConfigError: all that is on CUDA is on another device than the current one, on which copies would be made."""
    used = {device.index for device in devices if device.type == "cuda"}
    if len(used) == 1 and used != {current := torch.cuda.current_device()}:
        [index] = used
        raise ConfigError(
            f"the protected parameters are on cuda:{index}, but the current device is cuda:{current}: call "
            f"torch.cuda.set_device({index}) before protect()"
        )
