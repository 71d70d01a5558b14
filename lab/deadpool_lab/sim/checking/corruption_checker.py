"""Checker of rule 34 (replicas vote): what devices have really done, and what was made of it.

That no rank goes on from anything that an error has changed is checked where it stands and where it ends, as for every
rank: checker (b). That the good copy is kept: checker (e).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deadpool.protocol.causes import FaultKind
from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Plan
from deadpool_lab.sim.checking import fail
from deadpool_lab.sim.device import ONCE

if TYPE_CHECKING:
    from deadpool_lab.sim.world import World


class CorruptionChecker:
    def __init__(self, world: World) -> None:
        self._world = world
        self._erring: dict[str, str] = {}  # by node: how it errs
        self._good: Version | None = None  # the next plan has to resume here
        self.is_unsolved = False  # nobody is looked for any more, and devices may err as they like

    def on_error(self, node: str, how: str) -> None:
        if self._erring.get(node, ONCE) == ONCE:
            self._erring[node] = how

    # --- what the coordinator says ------------------------------------------------------------------------------------

    def on_event(self, what: str, detail: dict[str, Any]) -> None:
        match what:
            case _ if self._world.options.audit_every:
                return  # devices err in audited steps only, which another checker looks at
            case "corruption_found" if detail["node"] not in self._erring:
                fail("rule 34", f"{detail['node']} is named, and its device has never erred")
            case "corruption_suspected" | "corruption_found" if not self._erring:
                fail("rule 34", f"no device has erred, and {what}: {detail['reason']}")
            case "corruption_unsolved":
                self._on_unsolved(detail)
            case "fault":
                by_vote = detail["kind"] == FaultKind.CORRUPTION.value
                self._good = self._world.coordinator.commits.permit.watermark if by_vote else None
            case "no_plan" if self._good is not None:
                fail("rule 34", f"{self._good} was committed, replicas differed, and there is no plan")
            case "took_over":
                self._good = None
            case _:
                pass

    @property
    def may_end_young(self) -> bool:
        """A device that errs always from the first versions on looks like a wrong claim of replication."""
        return any(how != ONCE for how in self._erring.values())

    def _on_unsolved(self, detail: dict[str, Any]) -> None:
        lasting = [node for node, how in self._erring.items() if how != ONCE]
        if not lasting and self._world.history.exact and len(self._erring) < 2:
            fail("rule 34", f"one device has erred once, and nothing helps: {detail['reason']}")
        self.is_unsolved = True

    def on_plan(self, plan: Plan) -> None:
        """After replicas have differed, and nothing else has happened since."""
        good, self._good = self._good, None
        if good is not None and (plan.resume is None or plan.resume != good):
            fail("rule 34", f"{good} was committed, replicas differed, and the plan resumes from {plan.resume}")

    # --- what machines hold -------------------------------------------------------------------------------------------

    def on_commit(self, version: Version) -> None:
        if not self._world.options.replicated or self._world.may_shrink or self.is_unsolved:
            return
        held = self._replicas_of(version)
        if len(set(held.values())) > 1:
            fail("rule 34", f"{version} is committed, and ranks hold {held}")

    def _replicas_of(self, version: Version) -> dict[int, int]:
        """The state that all ranks should hold alike, as each of them has it at home."""
        world, found = self._world, {}
        for position, node in enumerate(world.coordinator.seats):
            machine = world.machine_at(node)
            for rank in world.layout.ranks_at(position):
                own = machine.agent.copies.own.get(rank)
                slot = own.find(version) if own is not None and machine.alive else None
                content = machine.arena.snapshot(slot.ref) if slot is not None else None
                if content is not None and content.replica is not None:
                    found[rank] = content.replica
        return found
