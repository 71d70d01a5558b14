"""Sets the environment variables that torchrun would set for this rank, and one for CUDA where torch has it."""

from __future__ import annotations

import os
import zlib

import torch

from deadpool.protocol.topology import Layout

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
