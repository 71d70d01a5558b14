"""What the cores are told of this feature."""

from __future__ import annotations

from deadpool.protocol.features.corruption.agent import ToldSteps
from deadpool.protocol.features.corruption.coordinator.corruption import Corruption
from deadpool.protocol.features.feature import Feature

FEATURE = Feature(coordinator=Corruption, agent=ToldSteps)
