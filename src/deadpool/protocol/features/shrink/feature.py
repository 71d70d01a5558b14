"""What the cores are told of this feature."""

from __future__ import annotations

from deadpool.protocol.features.feature import Feature
from deadpool.protocol.features.shrink.agent import SharesUsed
from deadpool.protocol.features.shrink.coordinator.growth import Growth
from deadpool.protocol.features.shrink.coordinator.vacancies import vacancies

FEATURE = Feature(coordinator=Growth, agent=SharesUsed, vacancies=vacancies)
