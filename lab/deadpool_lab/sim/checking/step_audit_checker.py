"""Checker of rule 35 (an audited step is computed twice): where devices have really erred, and what audits said of it.

Devices err in audited steps only, so whatever is committed has to be what an undisturbed run has.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from deadpool.protocol.features.corruption.coordinator.corruption import Corruption
from deadpool.protocol.identity import Generation, Version
from deadpool_lab.sim.checking import fail
from deadpool_lab.sim.device import Place

if TYPE_CHECKING:
    from deadpool_lab.sim.world import World

_NAMED_ONCE = 1


class StepAuditChecker:
    def __init__(self, world: World) -> None:
        self._world = world
        self._erred: set[str] = set()  # nodes
        self._named: Counter[str] = Counter()  # nodes
        self._ordered_in: Generation | None = None  # None: no step is audited
        self._step = 0  # that is audited
        self._errors: list[tuple[str, Place]] = []  # in that step
        self.is_over = False  # an error came where nobody could find it: nothing is to be expected from here on

    @property
    def is_under_way(self) -> bool:
        """Whether the coordinator compares what is computed now: a rank may not have heard that an audit is over."""
        corruption = self._world.coordinator.features.find(Corruption)
        return corruption is not None and corruption.step_audits.compares and self._world.leading_host.alive

    def on_error(self, node: str, place: Place) -> None:
        self._erred.add(node)
        self._errors.append((node, place))

    # --- what the coordinator says ------------------------------------------------------------------------------------

    def on_event(self, what: str, detail: dict[str, Any]) -> None:
        match what:
            case "step_audit_ordered":
                self._ordered_in, self._errors = self._world.coordinator.generation, []
                self._step = detail["step"]
            case "step_audit_passed":
                self._on_passed(detail["computed"])
            case "corruption_found":
                self._on_named(detail["node"])
            case "corruption_unexplained":
                self._on_nobody_named()
            case "drain" if self._named[detail["node"]] == _NAMED_ONCE:
                fail("rule 35", f"{detail['node']} is drained for one error")
            case "step_audit_put_off":
                self._on_put_off()
            case "step_audits_ended" if self._errors:
                self.is_over = True
            case "step_audits_ended":
                fail("rule 35", f"no device has erred, and audits end: {detail['reason']}")
            case "took_over" if self._errors and self._ordered_in is not None:
                self.is_over = True  # the audit is lost with the coordinator
            case "took_over":
                self._ordered_in = None
            case _:
                pass

    def _on_passed(self, computed: int) -> None:
        self._ordered_in = None
        if self._errors and computed == 2:
            fail("rule 35", f"devices have erred ({self._errors}), and two computations are said to agree")

    def _on_named(self, node: str) -> None:
        self._named[node] += 1
        if self._world.options.audit_every and node not in self._erred:
            fail("rule 35", f"{node} is named, and its device has never erred")

    def _on_nobody_named(self) -> None:
        if len(self._errors) == 1 and self._errors[0][1] is not Place.SUM:
            fail("rule 35", f"one device has erred once ({self._errors}), and nobody is named")

    def _on_put_off(self) -> None:
        """Nobody can undo what a device did before ranks have gone back. Later on, whatever has not been compared is
        computed again."""
        is_first = self._ordered_in == self._world.coordinator.generation
        self._ordered_in = None
        if self._errors and is_first:
            self.is_over = True

    # --- what machines hold -------------------------------------------------------------------------------------------

    def on_permit(self, watermark: Version | None) -> None:
        """Ranks have waited for the fence for too many steps, and capture again: the audit is as good as put off."""
        if self._errors and watermark is not None and watermark.generation == self._ordered_in:
            self.is_over = self.is_over or watermark.number >= self._step

    def on_commit(self, version: Version) -> None:
        world = self._world
        if not world.options.audit_every or self.is_over:
            return
        for position, node in enumerate(world.coordinator.seats):
            machine = world.machine_at(node)
            for rank in world.layout.ranks_at(position):
                own = machine.agent.copies.own.get(rank)
                slot = own.find(version) if own is not None and machine.alive else None
                content = machine.arena.snapshot(slot.ref) if slot is not None else None
                if content is not None and content.unique != world.history.state(version, rank).unique:
                    fail("rule 35", f"{version} is committed, and rank {rank} holds what a device has computed wrongly")
