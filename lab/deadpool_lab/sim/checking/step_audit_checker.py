"""Checker of rule 35 (an audited step is computed twice) and rule 36 (a spare is the judge): where devices have really
erred, and what audits said of it.

Devices err in audited steps only, and one that errs always only where it is judged, so whatever is committed has to be
what an undisturbed run has.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from deadpool.protocol.features.corruption.coordinator.corruption import Corruption
from deadpool.protocol.features.corruption.coordinator.step_audits import StepAudits
from deadpool.protocol.identity import Generation, Version
from deadpool_lab.sim.checking import fail
from deadpool_lab.sim.device import ALWAYS, Place

if TYPE_CHECKING:
    from deadpool_lab.sim.world import World


_TWICE = 2


class StepAuditChecker:
    def __init__(self, world: World) -> None:
        self._world = world
        self._erred: set[str] = set()  # nodes
        self._named: Counter[str] = Counter()  # errors by node, as the coordinator has counted them
        self._ordered_in: Generation | None = None  # None: no step is audited
        self.step = 0  # that is audited
        self._errors: list[tuple[str, Place, str]] = []  # in that step, and how
        self._seats: tuple[str, ...] = ()  # when it was ordered
        self._due: int | None = None  # the position that a spare is to compute too, if one was ready then
        self._to_be_named = ""  # the node that alone has erred, and always
        self._unjudged: set[str] = set()  # nodes that have erred always, and whose turn did not come after all
        self._could_be_judged = False  # though a spare was ready
        self.is_over = False  # an error came where nobody could find it: nothing is to be expected from here on

    @property
    def is_under_way(self) -> bool:
        """Whether the coordinator compares what is computed now: a rank may not have heard that an audit is over."""
        corruption = self._world.coordinator.features.find(Corruption)
        return corruption is not None and corruption.step_audits.compares and self._world.leading_host.alive

    def is_judged(self, node: str) -> bool:
        """Whether an error that this node repeats each time can be found: its turn has come, or it had no seat."""
        if self._due is None:
            return False
        return node not in self._seats or self._seats[self._due] == node

    def on_error(self, node: str, place: Place, how: str) -> None:
        self._erred.add(node)
        self._errors.append((node, place, how))

    @property
    def _audits(self) -> StepAudits:
        corruption = self._world.coordinator.features.find(Corruption)
        assert corruption is not None
        return corruption.step_audits

    # --- what the coordinator says ------------------------------------------------------------------------------------

    def on_event(self, what: str, detail: dict[str, Any]) -> None:
        match what:
            case "step_audit_ordered":
                self._on_ordered(detail["step"])
            case "step_audit_passed":
                self._on_passed(detail["computed"])
            case "corruption_found":
                self._on_named(detail["node"], detail["errors"])
            case "corruption_unexplained":
                self._on_nobody_named()
            case "step_audit_judged":
                self._on_judged(detail["ranks"])
            case "corruption_undecided":
                self._on_undecided(detail["nodes"])
            case "judging_ended" if self._errors:
                self.is_over = True  # a device may have been mended in between
            case "judging_ended":
                fail("rule 36", f"no device has erred, and judging ends: {detail['reason']}")
            case "drain" | "left" if self._world.options.audit_every and self._named[detail["node"]] == 1:
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

    def _on_ordered(self, step: int) -> None:
        self._ordered_in, self._errors, self.step = self._world.coordinator.generation, [], step
        self._seats, turns, due = self._world.coordinator.seats, self._audits.turns, self._audits.due
        self._due = due if due is not None and turns.judge_of(due) is not None else None

    def _on_passed(self, computed: int) -> None:
        self._ordered_in = None
        always, others = self._erring
        if computed == _TWICE and others:
            fail("rule 35", f"devices have erred ({self._errors}), and two computations are said to agree")
        self._unjudged, self._could_be_judged = always, self._has_judge
        self._to_be_named = next(iter(always)) if len(always) == 1 and not others else ""

    @property
    def _erring(self) -> tuple[set[str], set[str]]:
        """Nodes that have erred always, and others."""
        always = {node for node, _, how in self._errors if how == ALWAYS}
        return always, {node for node, *_ in self._errors} - always

    def _on_judged(self, ranks: list[int]) -> None:
        """Ranks that were found to differ come before those whose turn it was."""
        if self._world.layout.position_of(ranks[0]) == self._due:
            self._unjudged = set()

    @property
    def _has_judge(self) -> bool:
        return self._due is not None and self._audits.turns.judge_of(self._due) is not None

    def _on_undecided(self, nodes: list[str]) -> None:
        """Nobody else errs, and there would have been others to ask."""
        world, there, (always, others) = self._world, self._world.coordinator.members, self._erring
        if not self._errors:
            fail("rule 36", f"no device has erred, and {nodes} do not agree")
        is_alone = len(always) == 1 and not others and not world.calm
        if is_alone and not world.options.standbys and all(node in there for node in nodes):
            fail("rule 36", f"{always} errs always, nobody else does, and it is not named")
        self.is_over = True

    def _on_named(self, node: str, errors: int) -> None:
        self._named[node] = errors
        self._to_be_named = "" if self._to_be_named == node else self._to_be_named
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
            self.is_over = self.is_over or watermark.number >= self.step
        if self._unjudged:
            if self._could_be_judged and len(self._erring[0] | self._erring[1]) == 1:
                fail("rule 36", f"{self._unjudged} errs always, its turn has come, and it is not judged")
            self.is_over = True  # the spare is lost that was ready, or another node was judged

    def on_commit(self, version: Version) -> None:
        world = self._world
        if not world.options.audit_every or self.is_over:
            return
        if self._to_be_named:
            fail("rule 36", f"{self._to_be_named} errs always, and is not named")
        for position, node in enumerate(world.coordinator.seats):
            machine = world.machine_at(node)
            for rank in world.layout.ranks_at(position):
                own = machine.agent.copies.own.get(rank)
                slot = own.find(version) if own is not None and machine.alive else None
                content = machine.arena.snapshot(slot.ref) if slot is not None else None
                if content is not None and content.unique != world.history.state(version, rank).unique:
                    fail("rule 35", f"{version} is committed, and rank {rank} holds what a device has computed wrongly")
