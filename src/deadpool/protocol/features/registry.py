"""The features that there are: an import and an entry for each."""

from __future__ import annotations

from deadpool.protocol.agent.seams import AgentCore, AgentPart
from deadpool.protocol.coordinator.outbox import CoordinatorConfig
from deadpool.protocol.coordinator.recovery.global_plan import SPARES_AWAITED, Vacancies
from deadpool.protocol.coordinator.seams import CoordinatorCore, CoordinatorPart
from deadpool.protocol.features.adaptation.feature import FEATURE as ADAPTATION
from deadpool.protocol.features.corruption.feature import FEATURE as CORRUPTION
from deadpool.protocol.features.feature import Feature
from deadpool.protocol.features.leases.feature import FEATURE as LEASES
from deadpool.protocol.features.shrink.feature import FEATURE as SHRINK

FEATURES: tuple[Feature, ...] = (
    ADAPTATION,
    CORRUPTION,
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
