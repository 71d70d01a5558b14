"""What the cores are told of this feature."""

from __future__ import annotations

from deadpool.protocol.features.durable.agent import NodeWrites
from deadpool.protocol.features.durable.coordinator.checkpoints import CheckpointNews, Checkpoints
from deadpool.protocol.features.feature import Feature

FEATURE = Feature(coordinator=CheckpointNews, agent=NodeWrites, fallback=Checkpoints)
