"""Mutations of the rules of durable checkpoints."""

from __future__ import annotations

from deadpool.protocol.checkpoint import Checkpoint
from deadpool.protocol.coordinator.commits.checkpoints import Checkpoints, Write
from deadpool_lab.sim.mutations.mutation import Mutation, Patch


def counted_before_its_manifest(patch: Patch) -> None:
    real = Checkpoints._finish

    def finish(self: Checkpoints, write: Write, now: float) -> None:
        copies = tuple(copy for _, copy in sorted(write.copies.items()))
        self.newest = Checkpoint(name=write.name, number=write.version.number, copies=copies)
        real(self, write, now)

    patch.set(Checkpoints, "_finish", finish)


MUTATIONS = [
    Mutation(41, "checkpoint without its manifest", counted_before_its_manifest, rule=25, profile="durable"),
]
