"""What the cores are told of this feature."""

from __future__ import annotations

from deadpool.protocol.features.compilation.agent import NodeCode
from deadpool.protocol.features.compilation.coordinator import CodeOffers
from deadpool.protocol.features.feature import Feature

FEATURE = Feature(coordinator=CodeOffers, agent=NodeCode)
