"""What one agent exposes: figures of its own node, each from the part of the agent that has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deadpool.views.metrics.step_times import Histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    node: str
    connected: bool
    step_times: Mapping[int, Histogram]  # by rank
    trainers: Mapping[str, int]  # processes by state
    arena_bytes: int
    sent_bytes: int
    sent_seconds: float
    events: Mapping[str, int]  # that this agent has reported, by name
