"""What the cores are told of this feature."""

from __future__ import annotations

from deadpool.protocol.features.adaptation.agent import HealthMonitor
from deadpool.protocol.features.adaptation.coordinator.protection import Protection
from deadpool.protocol.features.feature import Feature

FEATURE = Feature(coordinator=Protection, agent=HealthMonitor)
