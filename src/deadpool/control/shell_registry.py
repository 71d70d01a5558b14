"""The features that have a part in the processes around the cores: an import and an entry for each."""

from __future__ import annotations

from deadpool.control.durable.shell import SHELL as DURABLE
from deadpool.control.shells import (
    CoordinatorAccess,
    CoordinatorShell,
    DataPlaneAccess,
    DataShells,
    FeatureShell,
)

SHELLS: tuple[FeatureShell, ...] = (
    DURABLE,
)  # fmt: skip


def data_shells(access: DataPlaneAccess) -> DataShells:
    return DataShells([shell.data(access) for shell in SHELLS if shell.data is not None])


def coordinator_shells(access: CoordinatorAccess) -> list[CoordinatorShell]:
    return [shell.coordinator(access) for shell in SHELLS if shell.coordinator is not None]
