"""What an audit of a step has found: this is told, counted, and may end further audits.

Rule 35, an audited step is computed twice; rule 36, a spare is the judge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import assert_never

from deadpool.protocol.coordinator.job import JobState
from deadpool.protocol.features.corruption.coordinator.computations import difference
from deadpool.protocol.features.corruption.coordinator.findings import ByProcess, Case, Finding, Named, Unexplained
from deadpool.protocol.features.corruption.coordinator.judge_turns import JudgeTurns
from deadpool.protocol.features.corruption.coordinator.judges import Computed, Settled
from deadpool.protocol.features.corruption.coordinator.votes import Evidence

_NOT_DETERMINISTIC = (
    "no two of {count} computations of step {step} agree: the script is not deterministic, or a device errs all the "
    "time. Ranks that never repeat themselves: {ranks}. Call torch.use_deterministic_algorithms(True), or test the node"
)
_MOVES_ALONG = (
    "rank {rank} computes a step otherwise the second time on whatever node it is ({nodes}): it is the script, not a "
    "device"
)
_BY_PROCESS = (
    "ranks {ranks} compute step {step} otherwise in a new process, on node {node} as on another one: it is the script, "
    "see docs/exactness.md"
)
_UNDECIDED = (
    "ranks {ranks} compute step {step} otherwise on each of the nodes {nodes}, and there is no further node that could "
    "tell: start another spare, and ask for an audit of rank {rank} (deadpool job audit --step --rank {rank})"
)


class AuditVerdicts:
    def __init__(self, job: JobState, turns: JudgeTurns, convict: Callable[[Evidence, int], None]) -> None:
        """`convict` counts errors of a node."""
        self._job, self._turns, self._convict = job, turns, convict
        self._nodes_of: defaultdict[int, set[str]] = defaultdict(set)  # on which a rank was found to differ
        self.audited_up_to: int | None = None
        self.last: dict[str, object] | None = None  # for people
        self.ended = ""  # why no step is audited any more

    def tell_difference(self, step: int, computed: Sequence[Computed]) -> str:
        """Returns why the step is computed once more. If the newest two computations differ somebody has erred, in this
        one or in the one before: another one will tell."""
        before, newest = computed[-2:]
        found = difference(before.told, newest.told)
        if found is None:
            return f"audit: step {step} is computed on another node, because no two nodes agree yet"
        nodes = [newest.seats[self._job.layout.position_of(rank)] for rank in found.ranks]
        rank, ranks, stage = found.ranks[0], list(found.ranks), found.stage
        part = newest.told[rank].differs or stage.text
        self._job.out.emit("step_audit_differs", step=step, ranks=ranks, nodes=nodes, stage=stage.value, part=part)
        when = "the second time" if before.seats == newest.seats else f"on node {nodes[0]}"
        return f"rank {rank} has computed something else {when}: {part}"

    # --- two computations are alike -----------------------------------------------------------------------------------

    def settle(self, case: Case, settled: Settled) -> None:
        out, step, computed, nodes = self._job.out, case.step, len(case.computed), case.agreed(settled)
        self.audited_up_to = step
        self._keep(case, nodes)
        self._turns.confirmed.update(dict.fromkeys(nodes, step))
        out.emit("step_audit_passed", step=step, ranks=len(settled.trusted[-1].told), computed=computed)
        if nodes:
            out.emit("step_audit_judged", step=step, ranks=list(case.ranks), nodes=nodes)
        for finding in case.findings(settled):
            self._report(case, finding)

    def _keep(self, case: Case, nodes: list[str]) -> None:
        alike = all(each.agrees_with(case.computed[0]) for each in case.computed)
        self.last = {"step": case.step, "computed": len(case.computed), "alike": alike}
        self.last |= {"nodes": nodes, "ranks": list(case.ranks)}

    def _report(self, case: Case, finding: Finding) -> None:
        match finding:
            case Named(evidence=evidence, errors=errors):
                if case.turn is not None or not self._is_script(evidence):
                    self._convict(evidence, errors)
            case Unexplained(reason=reason):
                self._job.out.emit("corruption_unexplained", step=case.step, reason=reason)
            case ByProcess(node=node, ranks=ranks):
                self._end_turns(case.step, _BY_PROCESS.format(ranks=_listed(ranks), step=case.step, node=node))
            case _ as never:
                assert_never(never)

    def _is_script(self, evidence: Evidence) -> bool:
        """A rank has differed on several nodes. Where no other node has computed the same, it may be the script."""
        for rank in evidence.ranks:
            self._nodes_of[rank].add(evidence.node)
            if len(nodes := self._nodes_of[rank]) > 1:
                self.end(evidence.step, _MOVES_ALONG.format(rank=rank, nodes=_listed(sorted(nodes))))
                return True
        self._turns.suspect(self._job.layout.position_of(evidence.ranks[0]))
        return False

    # --- no two are, or not of two nodes ------------------------------------------------------------------------------

    def tell_unrepeated(self, case: Case) -> None:
        *earlier, newest = (each.told for each in case.computed)
        found = [difference(each, newest) for each in earlier]
        ranks = set.intersection(*(set(each.ranks) for each in found if each is not None))
        names, count = _listed(sorted(ranks)) or "none", len(case.computed)
        self.end(case.step, _NOT_DETERMINISTIC.format(count=count, step=case.step, ranks=names))

    def tell_undecided(self, case: Case) -> None:
        """Nobody is named, and the job goes on from what it has computed last."""
        assert case.turn is not None
        nodes = list(dict.fromkeys(each.seats[case.turn.position] for each in case.computed))
        told = {"ranks": _listed(case.ranks), "nodes": _listed(nodes), "rank": case.ranks[0]}
        reason = _UNDECIDED.format(step=case.step, **told)
        self._keep(case, [])
        self._job.out.emit("corruption_undecided", step=case.step, ranks=list(case.ranks), nodes=nodes, reason=reason)
        self._end_turns(case.step, reason)

    # --- the end of audits --------------------------------------------------------------------------------------------

    def end(self, step: int, reason: str) -> None:
        self.ended = reason
        self._turns.release()
        self._job.out.emit("step_audits_ended", step=step, reason=reason)

    def _end_turns(self, step: int, reason: str) -> None:
        """Nobody is judged in turn any more. This is told once."""
        if not self._turns.ended:
            self._job.out.emit("judging_ended", step=step, reason=reason)
        self._turns.ended = reason

    def facts(self) -> dict[str, object]:
        told: dict[str, object] = {"audited_up_to": self.audited_up_to, "ended": self.ended, "last": self.last}
        return told | {"confirmed": self._turns.confirmed, "judging_ended": self._turns.ended}


def _listed(names: Sequence[object]) -> str:
    return ", ".join(map(str, names))
