"""What a feature brings to the cores. What it leaves out, the cores do without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deadpool.protocol.agent.copies.copies import JointCopiesOf
from deadpool.protocol.agent.seams import AgentCore, AgentPart
from deadpool.protocol.coordinator.job import JobState
from deadpool.protocol.coordinator.outbox import CoordinatorConfig
from deadpool.protocol.coordinator.protection.redundancy import Redundancy
from deadpool.protocol.coordinator.recovery.fallback import Fallback
from deadpool.protocol.coordinator.recovery.global_plan import Vacancies
from deadpool.protocol.coordinator.seams import CoordinatorCore, CoordinatorPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    coordinator: Callable[[CoordinatorCore], CoordinatorPart] | None = None
    agent: Callable[[AgentCore], AgentPart] | None = None
    redundancy: Redundancy | None = None
    joint_copies: JointCopiesOf | None = None
    vacancies: Callable[[CoordinatorConfig], Vacancies] | None = None
    fallback: Callable[[JobState], Fallback] | None = None
