"""The environment variables and the device of this process.

`set_environment` sets the environment variables that torchrun would set for this rank, and one for CUDA where torch
has it.

`DeviceStream` and `Device` choose the device of this process, check whether it still works, and wait for its work.
Callers act on the answer.

After an illegal access or a failed assert on the device, every call of this process to CUDA raises the error, and
only another process can use the device again. So the device itself is queried. The text of an exception would not
tell: a lost peer, the script itself, or a lack of memory that the process can survive may have caused it.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterable
from typing import Protocol

import torch

from deadpool.errors import ConfigError
from deadpool.protocol.identity import Layout

_FIRST_PORT, _PORT_COUNT = 20_000, 10_000  # below the ports that the kernel assigns by itself

_COPY_CONNECTIONS = ("CUDA_DEVICE_MAX_COPY_CONNECTIONS", "8")
"""CUDA's own default. Scripts of Megatron set CUDA_DEVICE_MAX_CONNECTIONS=1, which would put all copies into one queue,
and what the script reads would wait for the whole of a capture (snapshot/copying/cuda_lane.py)."""


def set_environment(rank: int, layout: Layout, master: str, secret: bytes) -> None:
    """DeadPool does not use MASTER_PORT, so a script that makes a store of its own can listen there."""
    local, position = layout.local_rank(rank), layout.position_of(rank)
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(layout.world_size),
        LOCAL_RANK=str(local),
        LOCAL_WORLD_SIZE=str(layout.per_node),
        GROUP_RANK=str(position),
        GROUP_WORLD_SIZE=str(layout.positions),
        ROLE_RANK=str(rank),
        ROLE_WORLD_SIZE=str(layout.world_size),
        MASTER_ADDR=master,
        MASTER_PORT=str(_FIRST_PORT + zlib.crc32(secret) % _PORT_COUNT),
        TORCHELASTIC_RUN_ID="deadpool",
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
        ROLE_NAME="default",
    )
    if torch.version.cuda is not None:
        os.environ.setdefault(*_COPY_CONNECTIONS)


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
