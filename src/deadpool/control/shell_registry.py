"""The features that have a part in the processes around the cores: an import and an entry for each."""

from __future__ import annotations

from deadpool.control.coding.shell import SHELL as CODING
from deadpool.control.compilation.shell import SHELL as COMPILATION
from deadpool.control.durable.shell import SHELL as DURABLE
from deadpool.control.shells import (
    CoordinatorAccess,
    CoordinatorShell,
    DataPlaneAccess,
    DataShells,
    FeatureShell,
    JointAccess,
    JointShell,
)

SHELLS: tuple[FeatureShell, ...] = (
    CODING,
    COMPILATION,
    DURABLE,
)  # fmt: skip


def data_shells(access: DataPlaneAccess) -> DataShells:
    return DataShells([shell.data(access) for shell in SHELLS if shell.data is not None])


def joint_shell(access: JointAccess) -> JointShell:
    """Returns what the data plane does with joint copies; at most one feature makes them."""
    made = (shell.joint(access) for shell in SHELLS if shell.joint is not None)
    return next(made, None) or JointShell(access)


def coordinator_shells(access: CoordinatorAccess) -> list[CoordinatorShell]:
    return [shell.coordinator(access) for shell in SHELLS if shell.coordinator is not None]
