"""The environment a script finds: what torchrun would give it, for whichever rank it runs as now."""

from __future__ import annotations

import os

from deadpool.protocol.topology import Address, Layout


def set_environment(rank: int, layout: Layout, store: Address) -> None:
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
        MASTER_ADDR=store.host,
        MASTER_PORT=str(store.port),
        TORCHELASTIC_RUN_ID="deadpool",
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_USE_AGENT_STORE="True",  # rank 0 must not try to host a store at this port: one listens there
    )
