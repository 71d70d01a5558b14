"""The features that there are: an import and an entry for each."""

from __future__ import annotations

from deadpool.protocol.agent.copies.copies import JointCopiesOf
from deadpool.protocol.agent.copies.joint import JointCopies
from deadpool.protocol.agent.seams import AgentCore, AgentPart
from deadpool.protocol.coordinator.job import JobState
from deadpool.protocol.coordinator.outbox import CoordinatorConfig
from deadpool.protocol.coordinator.protection.redundancy import COPIES_ONLY, Redundancy
from deadpool.protocol.coordinator.recovery.fallback import Fallback
from deadpool.protocol.coordinator.recovery.global_plan import SPARES_AWAITED, Vacancies
from deadpool.protocol.coordinator.seams import CoordinatorCore, CoordinatorPart
from deadpool.protocol.features.adaptation.feature import FEATURE as ADAPTATION
from deadpool.protocol.features.coding.feature import FEATURE as CODING
from deadpool.protocol.features.compilation.feature import FEATURE as COMPILATION
from deadpool.protocol.features.corruption.feature import FEATURE as CORRUPTION
from deadpool.protocol.features.durable.feature import FEATURE as DURABLE
from deadpool.protocol.features.feature import Feature
from deadpool.protocol.features.leases.feature import FEATURE as LEASES
from deadpool.protocol.features.shrink.feature import FEATURE as SHRINK

FEATURES: tuple[Feature, ...] = (
    ADAPTATION,
    CODING,
    COMPILATION,
    CORRUPTION,
    DURABLE,
    LEASES,
    SHRINK,
)  # fmt: skip


def coordinator_parts(core: CoordinatorCore) -> list[CoordinatorPart]:
    return [feature.coordinator(core) for feature in FEATURES if feature.coordinator is not None]


def agent_parts(core: AgentCore) -> list[AgentPart]:
    return [feature.agent(core) for feature in FEATURES if feature.agent is not None]


def vacancies(config: CoordinatorConfig) -> Vacancies:
    """Returns what fills empty positions; at most one feature does."""
    for feature in FEATURES:
        if feature.vacancies is not None:
            return feature.vacancies(config)
    return SPARES_AWAITED


def fallback(job: JobState) -> Fallback:
    """Returns what a recovery goes back to where no version in memory serves; at most one feature has it."""
    for feature in FEATURES:
        if feature.fallback is not None:
            return feature.fallback(job)
    return Fallback()


def redundancy() -> Redundancy:
    """Returns what protects ranks in groups; at most one feature does."""
    return next((feature.redundancy for feature in FEATURES if feature.redundancy is not None), COPIES_ONLY)


def joint_copies() -> JointCopiesOf:
    """Returns what a node keeps for groups; at most one feature does."""
    return next((feature.joint_copies for feature in FEATURES if feature.joint_copies is not None), JointCopies)
