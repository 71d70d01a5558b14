"""What an optional feature adds to the processes around the cores: to an agent's data plane and to a coordinator.

A feature derives its part from `DataShell` or `CoordinatorShell` and overrides what it has a say in; the rest does
nothing. `shell_registry.py` has an import and an entry for each feature.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deadpool.config.job_config import JobConfig
from deadpool.events.event import Event
from deadpool.protocol.effects import FeatureEffect, FetchCopy
from deadpool.protocol.identity import Generation
from deadpool.protocol.inputs import AgentInput, FeatureInput
from deadpool.protocol.messages import Settings, SlotRef


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlaneAccess:
    """What a feature may use of the data plane."""

    deliver: Callable[[AgentInput], None]  # takes inputs for the core from any thread
    slot: Callable[[SlotRef], memoryview]
    stream: Callable[[Callable[[], None]], None]  # runs work in a thread; a fence waits until it has ended


class DataShell:
    def use(self, settings: Settings) -> None:
        """The job's settings are known from now on."""

    def perform(self, effect: FeatureEffect) -> bool:
        """Returns False for another feature's effect."""
        return False

    def load(self, fetch: FetchCopy) -> bool:
        """Loads a snapshot from outside of the job's memory. Returns False where another feature keeps it."""
        return False

    def cut(self, generation: Generation) -> None:
        """No slot is read or written for an older generation after this, once the work that streams has ended."""

    def close(self) -> None:
        """The agent ends."""


class DataShells:
    """The parts of all features, as one."""

    def __init__(self, shells: Sequence[DataShell]) -> None:
        self._shells = tuple(shells)

    def use(self, settings: Settings) -> None:
        for shell in self._shells:
            shell.use(settings)

    def perform(self, effect: FeatureEffect) -> None:
        """An effect that nobody performs would be waited for without end."""
        done = [shell for shell in self._shells if shell.perform(effect)]
        assert len(done) == 1, effect

    def load(self, fetch: FetchCopy) -> None:
        assert any(shell.load(fetch) for shell in self._shells), fetch

    def cut(self, generation: Generation) -> None:
        for shell in self._shells:
            shell.cut(generation)

    def close(self) -> None:
        for shell in self._shells:
            shell.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorAccess:
    """What a feature knows of the coordinator's process."""

    config: JobConfig
    secret: bytes  # of the job
    founds: bool  # this process begins the job


class CoordinatorShell:
    def settings(self) -> Mapping[str, Any]:
        """The feature's fields of the job's settings."""
        return {}

    def asked_by(self) -> Mapping[signal.Signals, FeatureInput]:
        """What a signal to the coordinator's process asks for."""
        return {}

    def begin(self, note: Callable[[Event], None]) -> Sequence[FeatureInput]:
        """The job is about to begin. Called in a thread."""
        return ()

    def lead(self) -> FeatureInput | Event | None:
        """This process has become the coordinator. Called in a thread."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureShell:
    data: Callable[[DataPlaneAccess], DataShell] | None = None
    coordinator: Callable[[CoordinatorAccess], CoordinatorShell] | None = None
