"""The interface of an adapter, and the adapter of models without a wrapper or with DTensors.

`PlainAdapter` modules without a wrapper, and tensor parallel ones: a step that was cut off leaves only gradients in
them.

They stay where they are until the state of a version is put back, which zeroes them in place: the script may hold
them (snapshot/identity/gradients.py).

`replicas_of` and `whole_mesh` read the meshes of DTensors: which ranks hold the same part of one, and which
coordinates ranks have.

`Adapter` and `Negotiator`: what a library needs around a recovery: a reset after unwinding, a rehearsal by a spare,
a seat at a step.

The calls of an adapter, on the main thread, and always without communication:

    survivor   reset()                                  after the exception, groups aborted
               seated(step)                             once the plan says from which step work resumes
               resumed()                                at Go
    newcomer   with rehearsing(): dry_steps steps       under detached groups
               reset()                                  after these steps
               seated(step)                             once it has a rank
               resumed()                                at Go

seated() comes after the state of the protected objects was put back. It may come before or after the process groups
are built anew, but before the first forward. All ranks that are seated at the same step end in the same state,
whatever happened to them before: that makes the redone step exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from deadpool.snapshot.state import cures


def replicas_of(parameters: Iterable[torch.Tensor]) -> dict[int, tuple[int, ...]]:
    """id(parameter) -> global ranks with identical local values; only where there is more than one."""
    found = {id(each): _ranks_alike(each) for each in parameters if isinstance(each, DTensor)}
    return {key: ranks for key, ranks in found.items() if len(ranks) > 1}


def _ranks_alike(tensor: DTensor) -> tuple[int, ...]:
    """The ranks that differ from this one only along mesh dimensions over which the tensor is replicated."""
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:  # this rank is outside of the mesh
        return ()
    index: list[Any] = [
        slice(None) if placement.is_replicate() else position
        for placement, position in zip(tensor.placements, coordinate, strict=True)
    ]
    return tuple(sorted(torch.as_tensor(tensor.device_mesh.mesh[tuple(index)]).flatten().tolist()))


def whole_mesh(parameters: Iterable[torch.Tensor], world_size: int) -> tuple[tuple[str, ...], tuple[int, ...]] | None:
    """Names and sizes of the dimensions of the mesh that has all ranks in their order, the last dimension fastest.
    None: the parameters are on no such mesh, or its dimensions have no names."""
    meshes = {id(each.device_mesh): each.device_mesh for each in parameters if isinstance(each, DTensor)}
    for mesh in meshes.values():
        root = mesh._get_root_mesh() if hasattr(mesh, "_get_root_mesh") else mesh  # a name that is not public
        if root.mesh_dim_names and root.mesh.flatten().tolist() == list(range(world_size)):
            return tuple(root.mesh_dim_names), tuple(root.mesh.shape)
    return None


class Adapter:
    """Knows what one library keeps besides the state of its objects. A subclass overrides what its library needs.

    State that has to survive belongs into the objects of `protect`. An adapter is for the rest: caches, counters and
    handles that belong to one step, and values that follow from state and have to be computed again.
    """

    name = "adapter"
    dry_steps_change_numerics = False
    """False: dry steps only warm up, and may be skipped while survivors wait."""

    @property
    def dry_steps(self) -> int:
        """How many steps (forward, backward, optimizer) a spare rehearses; of several adapters the highest counts."""
        return 1

    def reset(self) -> None:
        """Drops what a step that was cut off left behind. The step may have been cut off anywhere, or nowhere."""

    def rehearsing(self) -> AbstractContextManager[None]:
        """A context around each of a spare's dry steps."""
        return nullcontext()

    def seated(self, resume_step: int) -> None:
        """Brings the library into the state that it has at the start of `resume_step` in an undisturbed run."""

    def resumed(self) -> None:
        """The steps that follow are real ones. Until then seated() may be called again, after a fault meanwhile."""

    def replicas(self) -> dict[int, tuple[int, ...]]:
        """id(parameter) -> global ranks with identical values and optimizer state; only where there are several."""
        return {}


@runtime_checkable
class Negotiator(Protocol):
    """The adapter of a framework whose ranks agree on something in their first step and rely on it later.

    Called between seated() and the first forward. If the agreement is the same on all ranks, they keep it. If not, all
    forget it and agree anew in the next step. Either way all ranks run the same collectives.
    """

    def agreement(self) -> str:
        """How far this rank's agreements have come, as text that all ranks can compare."""

    def renegotiate(self) -> None:
        """Forgets what was agreed."""


class PlainAdapter(Adapter):
    """Knows which parameters are replicated."""

    name = "plain"

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = list(modules)

    def reset(self) -> None:
        for module in self._modules if cures.is_off("D1") else ():
            module.zero_grad(set_to_none=True)

    def seated(self, resume_step: int) -> None:
        self.reset()

    def replicas(self) -> dict[int, tuple[int, ...]]:
        return replicas_of(parameter for module in self._modules for parameter in module.parameters())
