"""The generation a node is in and how far it has come in it. Every part of the agent reads this one value.

    NEW --------------------- plan --> PREPARING -- Go --> RUNNING
    any -- fence --> UNWINDING -- frozen --> FROZEN -- plan --> PREPARING

A spare hears every plan and no Go, so it stays in PREPARING.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from deadpool.protocol.identity import NO_GENERATION, Generation


class AgentPhase(Enum):
    NEW = "new"  # neither a fence nor a plan has come yet
    UNWINDING = "unwinding"  # fenced: streams are being cut, trainers come to rest
    FROZEN = "frozen"  # fenced and acknowledged: nothing changes before the plan
    PREPARING = "preparing"  # the plan is being carried out
    RUNNING = "running"  # Go was heard
    ENDING = "ending"  # the agent is about to exit and ignores all further input


@dataclass(slots=True)
class GenerationState:
    generation: Generation = NO_GENERATION
    cause: str = ""  # why this generation began
    phase: AgentPhase = AgentPhase.NEW

    @property
    def is_fenced(self) -> bool:
        return self.phase in (AgentPhase.UNWINDING, AgentPhase.FROZEN)

    @property
    def is_running(self) -> bool:
        return self.phase is AgentPhase.RUNNING

    def fence(self, generation: Generation, cause: str) -> None:
        self.generation, self.cause, self.phase = generation, cause, AgentPhase.UNWINDING

    def freeze(self) -> None:
        assert self.phase is AgentPhase.UNWINDING, self.phase
        self.phase = AgentPhase.FROZEN

    def prepare(self, generation: Generation, cause: str) -> None:
        self.generation, self.cause, self.phase = generation, cause, AgentPhase.PREPARING

    def go(self) -> None:
        self.phase = AgentPhase.RUNNING

    def end(self) -> None:
        self.phase = AgentPhase.ENDING
