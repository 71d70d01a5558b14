"""The store of durable checkpoints, which outlives all machines. Writes take time, fail, and are cut off by deaths."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from deadpool.protocol.causes import Checkpoint
from deadpool.protocol.effects import CompleteCheckpoint, FetchCopy, WritePart
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.inputs import CheckpointFinished, Fetched, FetchFailed, PartWritten, Staged
from deadpool.protocol.messages import Copy, Plan
from deadpool_lab.sim.arena import Content
from deadpool_lab.sim.checking import fail

if TYPE_CHECKING:
    from deadpool_lab.sim.machine import Machine
    from deadpool_lab.sim.world import World

STAGE_S, WRITE_S, LOAD_S = 0.3, 3.0, 2.0
FAILURE = 0.05


@dataclass(slots=True)
class StoredCheckpoint:
    parts: dict[int, Content] = field(default_factory=dict)
    number: int = 0
    copies: tuple[Copy, ...] = ()  # empty: not complete


class DurableStore:
    def __init__(self, world: World) -> None:
        self._world = world
        self._stored: dict[str, StoredCheckpoint] = {}
        self._staging: dict[str, list[WritePart]] = {}  # by incarnation of the machine whose slots are copied
        self._loading: dict[str, list[FetchCopy]] = {}  # by incarnation of the machine that loads
        self.fallbacks = 0  # parts of plans that went back to a checkpoint

    # --- writes -------------------------------------------------------------------------------------------------------

    def write_part(self, machine: Machine, effect: WritePart) -> None:
        self._staging.setdefault(machine.incarnation, []).append(effect)
        self._world.after(STAGE_S, partial(self._staged, machine, effect))

    def _staged(self, machine: Machine, effect: WritePart) -> None:
        if not machine.alive or effect not in self._staging.get(machine.incarnation, []):
            return
        self._staging[machine.incarnation].remove(effect)
        contents = [machine.arena.snapshot(ref) for ref, _, _ in effect.copies]
        machine.feed(Staged(name=effect.name, slots=tuple(ref for ref, _, _ in effect.copies)))
        self._world.after(WRITE_S, partial(self._written, machine, effect, contents))

    def _written(self, machine: Machine, effect: WritePart, contents: list[Content | None]) -> None:
        if not machine.alive:
            return
        seals = [copy.seal for _, copy, _ in effect.copies]
        torn = any(c is None or c.digest() != seal.digest for c, seal in zip(contents, seals, strict=True))
        if torn or (not self._world.calm and self._world.rng.random() < FAILURE):
            machine.feed(PartWritten(name=effect.name, bytes_written=0, failure="no space"))
            return
        stored = self._stored.setdefault(effect.name, StoredCheckpoint())
        stored.parts |= {content.rank: content for content in contents if content is not None}
        machine.feed(PartWritten(name=effect.name, bytes_written=1))

    def complete(self, machine: Machine, effect: CompleteCheckpoint) -> None:
        self._world.after(WRITE_S, partial(self._completed, machine, effect))

    def _completed(self, machine: Machine, effect: CompleteCheckpoint) -> None:
        if not machine.alive:
            return
        stored = self._stored[effect.name]
        stored.number, stored.copies = effect.number, effect.copies
        machine.feed(CheckpointFinished(name=effect.name, bytes_written=1))

    # --- reads --------------------------------------------------------------------------------------------------------

    def load(self, machine: Machine, effect: FetchCopy) -> None:
        machine.arena.begin_write(effect.slot, effect)
        self._loading.setdefault(machine.incarnation, []).append(effect)
        self._world.after(LOAD_S, partial(self._loaded, machine, effect))

    def _loaded(self, machine: Machine, effect: FetchCopy) -> None:
        if not machine.alive or effect not in self._loading.get(machine.incarnation, []):
            return
        self._loading[machine.incarnation].remove(effect)
        seal = effect.fetch.copy.seal
        content = self._stored[effect.fetch.fallback].parts.get(seal.rank)
        if content is None or content.digest() != seal.digest:
            machine.arena.end_write(effect.slot, effect, None)
            name = effect.fetch.fallback
            machine.feed(FetchFailed(rank=effect.rank, slot=effect.slot, reason="damaged", fallback=name))
            return
        machine.arena.end_write(effect.slot, effect, replace(content, version=seal.version))
        machine.feed(Fetched(rank=effect.rank, slot=effect.slot, copy=effect.fetch.copy))

    def cut(self, machine: Machine, generation: Generation) -> None:
        """Ends writes and loads before the agent hears that streams are cut: no slot is read or written for older
        generations after that.
        """
        for staging in [s for s in self._staging.get(machine.incarnation, []) if s.generation < generation]:
            self._staging[machine.incarnation].remove(staging)
            machine.feed(Staged(name=staging.name, slots=tuple(ref for ref, _, _ in staging.copies)))
            machine.feed(PartWritten(name=staging.name, bytes_written=0, failure="a recovery began"))
        for effect in [e for e in self._loading.get(machine.incarnation, []) if e.generation < generation]:
            self._loading[machine.incarnation].remove(effect)
            machine.arena.end_write(effect.slot, effect, None)

    # --- what there is ------------------------------------------------------------------------------------------------

    def newest(self) -> Checkpoint | None:
        complete = [(stored.number, name) for name, stored in self._stored.items() if stored.copies]
        if not complete:
            return None
        number, name = max(complete)
        return Checkpoint(name=name, number=number, copies=self._stored[name].copies)

    def origin(self, plan: Plan) -> Version | None:
        """The version that was written, where a plan resumes from a checkpoint. The checker of checkpoints."""
        names = [fetch.fallback for order in plan.orders for fetch in order.fetch if fetch.fallback]
        if not names:
            return None
        stored = self._stored.get(names[0])
        ranks = range(self._world.layout.world_size)
        if len(set(names)) > 1 or len(names) != len(plan.orders):
            fail("rule 25", f"a plan mixes checkpoints and copies: {plan}")
        if stored is None or not stored.copies or any(rank not in stored.parts for rank in ranks):
            fail("rule 25", f"a plan resumes from checkpoint {names[0]}, which is not complete")
        assert stored is not None
        self.fallbacks += 1
        versions = {str(stored.parts[rank].version) for rank in ranks}
        if len(versions) > 1:
            fail("rule 25", f"checkpoint {names[0]} mixes versions {sorted(versions)}")
        return stored.parts[0].version
