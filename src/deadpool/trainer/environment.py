"""The environment a script finds: what torchrun would give it, for whichever rank it runs as now."""

from __future__ import annotations

import os
import zlib

from deadpool.protocol.topology import Layout

_FIRST_PORT, _PORT_COUNT = 20_000, 10_000  # below what the kernel gives away on its own


def set_environment(rank: int, layout: Layout, master: str, secret: bytes) -> None:
    """MASTER_PORT is free for the script: rank 0 of one that calls init_process_group itself listens there."""
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
