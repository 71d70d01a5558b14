"""What the cores are told of this feature."""

from __future__ import annotations

from deadpool.protocol.features.feature import Feature
from deadpool.protocol.features.leases.agent.shared_machine import SharedMachine

FEATURE = Feature(agent=SharedMachine)
