"""What the cores are told of this feature."""

from __future__ import annotations

from deadpool.protocol.features.coding.agent import Parities
from deadpool.protocol.features.coding.coordinator.parity_news import ParityNews
from deadpool.protocol.features.coding.coordinator.placement import CodedRedundancy
from deadpool.protocol.features.feature import Feature

FEATURE = Feature(coordinator=ParityNews, redundancy=CodedRedundancy(), joint_copies=Parities)
