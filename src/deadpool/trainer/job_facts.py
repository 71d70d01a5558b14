"""What rank 0 tells once, when a job begins: about its torch and about its mesh."""

from __future__ import annotations

from deadpool.host.notes import note
from deadpool.snapshot.state.state import ProtectedState
from deadpool.trainer.adapters import wrappers
from deadpool.trainer.adapters.plain import whole_mesh
from deadpool.trainer.process import torch_check
from deadpool.trainer.process.session import Session


def tell(session: Session, state: ProtectedState) -> None:
    if session.rank == 0:
        _warn_of_torch(session)
        _tell_mesh(session, state)


def _warn_of_torch(session: Session) -> None:
    assert session.settings is not None
    if text := torch_check.verdict().reason or wrappers.warning(session.settings.in_place):
        note(text)
        session.emit("unknown_torch", reason=text, rehearses=not torch_check.is_plain())


def _tell_mesh(session: Session, state: ProtectedState) -> None:
    """For operators, who see ranks and think of stages and shards."""
    assert session.settings is not None
    parameters = (each for module in state.modules for each in module.parameters())
    mesh = whole_mesh(parameters, session.settings.layout.world_size)
    if mesh is not None:
        session.emit("mesh", names=list(mesh[0]), shape=list(mesh[1]))
