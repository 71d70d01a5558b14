"""Rule 34, replicas vote: no version that replicas do not hold alike is committed, and nothing that follows from it is
used.

All ranks go back to the watermark and compute the steps again. Who is at fault is decided in `votes.py`; here, what
follows: a node that was outvoted, or that has changed what it says, is counted, and the second time a spare takes its
ranks, the first time already where more than one spare is there. A node is never moved for a suspicion.

What a coordinator knows of suspicions is lost with it. That is safe: a successor compares what nodes have frozen before
it makes a plan, and every version before it is committed. Quarantines are kept by the nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from deadpool.protocol.causes import EndCause, FaultKind
from deadpool.protocol.coordinator.commits.commits import wrong_claim
from deadpool.protocol.coordinator.job import Phase
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.recovery.fault_history import ObservedFault
from deadpool.protocol.coordinator.seams import CoordinatorCore, CoordinatorPart
from deadpool.protocol.features.corruption.coordinator.frozen import frozen_ballots
from deadpool.protocol.features.corruption.coordinator.step_audits import StepAudits
from deadpool.protocol.features.corruption.coordinator.votes import (
    Ballot,
    Evidence,
    Suspicion,
    Vote,
    differing_groups,
    in_hex,
)
from deadpool.protocol.identity import FeatureMessage, Version
from deadpool.protocol.inputs import FeatureInput, StepAuditAsked
from deadpool.protocol.messages import StepDigests
from deadpool.protocol.seal import replica_of

STOP, IGNORE = "stop", "ignore"
STEP_AUDIT = "step_audit"
"""The word by which a person asks for one."""
REDOS = 2
"""How often the steps to one version are computed again while everybody repeats what they have said."""
REDOS_AT_MOST = 4
"""The same, whatever they say: less than recoveries without progress end the job (`RETRIES`)."""
ERRORS = 2
"""The number of errors of one node for which the last spare is taken."""


class Corruption(CoordinatorPart):
    def __init__(self, core: CoordinatorCore) -> None:
        self._job, self._history, self._faults = core.job, core.history, core.faults
        self._ending, self._drains, self._requests = core.ending, core.drains, core.requests
        self._acts = core.job.settings.on_corruption != IGNORE
        self._stops = core.job.settings.on_corruption == STOP
        self._pending: Vote | None = None  # of the version that is withheld
        self._suspicion: Suspicion | None = None
        self._to_leave: Evidence | None = None  # of a node whose ranks are to go to a spare, although all agree by now
        self.errors: Counter[str] = Counter()  # by node
        self.unsolved = ""  # why nothing is done any more where replicas differ
        self.step_audits = StepAudits(core, self._convict)

    # --- a version is complete ----------------------------------------------------------------------------------------

    def withholds(self, version: Version) -> bool:
        if not self._acts:
            return False
        ballots = self._ballots(version)
        groups = differing_groups(ballots)
        if not groups:
            self._on_agreement(version, ballots)
        elif self._job.commits.permit.watermark is not None:
            self._pending = Vote(version, groups)
        return self._pending is not None

    def _ballots(self, version: Version) -> dict[int, Ballot]:
        ledger = self._job.commits.ledger
        return {
            rank: Ballot(rank=rank, node=self._node_of(rank), digest=replica_of(copy.seal), peers=copy.peers)
            for rank, copy in ledger.replicas.get(version, {}).items()
            if copy.peers
        }

    def _node_of(self, rank: int) -> str:
        return self._job.commits.ledger.nodes[self._job.layout.position_of(rank)]

    def advance(self, now: float) -> None:
        self.step_audits.advance(now)
        vote, self._pending = self._pending, None  # after a fence it is compared again, as far as it is still there
        if vote is not None and self._job.phase is Phase.RUNNING:
            self._act(vote, now)
        elif self._to_leave is not None and self._job.can_drain and self._drains.current is None:
            evidence, self._to_leave = self._to_leave, None
            self._drain(evidence, now)

    # --- replicas differ ----------------------------------------------------------------------------------------------

    def _act(self, vote: Vote, now: float) -> None:
        young, outvoted = self._job.commits.is_young, vote.outvoted
        before = self._suspicion if self._suspicion and self._suspicion.number == vote.version.number else None
        if self._job.released:
            self._tell_unsolved(vote, "all ranks had done their last step, so it was not computed again", stops=False)
        elif before is None and (young or outvoted is None):
            self._suspect(vote, now)
        elif before is None:
            assert outvoted is not None
            self._name(vote.evidence(outvoted), vote, now)
        elif before.is_repeated_elsewhere(vote):
            self._lift(before)
            self._give_up(vote, "a rank computes the same on two machines, and its replicas something else", now)
        elif young and not before.changed(vote.ballots):
            self._end_for_wrong_claim(vote)
        elif outvoted is not None:
            self._name(vote.evidence(outvoted), vote, now)
        else:
            self._judge_by_redo(before, vote, now)

    def _judge_by_redo(self, before: Suspicion, vote: Vote, now: float) -> None:
        """Decides where replicas still differ and nobody is outvoted."""
        nodes, repeated = before.nodes_that_changed(vote.ballots), before.is_repeated(vote.ballots)
        if len(nodes) > 1 and not repeated:
            self._on_inexact_script(vote)
        elif len(nodes) == 1 and repeated:
            self._name(before.evidence(nodes.pop(), vote.ballots), vote, now)
        elif before.redone < REDOS:
            self._suspect(vote, now)
        else:
            self._give_up(vote, f"everybody computed the same again, {before.redone} times", now)

    def _suspect(self, vote: Vote, now: float) -> None:
        """Nobody is named. Whoever says something else the second time has erred."""
        ranks = ", ".join(map(str, vote.ranks))
        reason = f"replicas on ranks {ranks} hold different state after step {vote.version.number}"
        self._tell_suspicion(vote, reason)
        self._redo(vote, reason, now)

    def _tell_suspicion(self, vote: Vote, reason: str) -> None:
        step, ranks, nodes, digests = vote.version.number, list(vote.ranks), _nodes(vote), _digests(vote)
        self._job.out.emit("corruption_suspected", step=step, ranks=ranks, nodes=nodes, digests=digests, reason=reason)

    def _name(self, evidence: Evidence, vote: Vote, now: float) -> None:
        self._count(evidence)
        errors, spares = self.errors[evidence.node], self._spares
        if self._redone(vote) >= (REDOS if errors >= ERRORS and not spares else REDOS_AT_MOST):
            self._give_up(vote, f"node {evidence.node} errs again and again, and no spare is left for its ranks", now)
            return
        self._redo(vote, evidence.reason, now, named=evidence, moves=errors >= ERRORS or spares > 1)

    def _count(self, evidence: Evidence, errors: int = 1) -> None:
        self.errors[evidence.node] += errors
        self._job.out.emit(
            "corruption_found",
            node=evidence.node,
            rank=evidence.ranks[0],
            step=evidence.step,
            ranks=list(evidence.ranks),
            found=evidence.found.value,
            digests=list(evidence.digests),
            others=list(evidence.others),
            errors=self.errors[evidence.node],
            reason=evidence.reason,
        )

    @property
    def _spares(self) -> int:
        return sum(each.is_spare and not (each.quarantined or each.doubted) for each in self._job.members.values())

    # --- what follows -------------------------------------------------------------------------------------------------

    def _redone(self, vote: Vote) -> int:
        before = self._suspicion
        return before.redone if before is not None and before.number == vote.version.number else 0

    def _redo(self, vote: Vote, reason: str, now: float, named: Evidence | None = None, moves: bool = False) -> None:
        """All ranks go back to the watermark. What was computed after it is used by nobody: it may follow from what
        differs."""
        suspicion = self._note(vote)
        suspicion.redone += 1
        node = named.node if named is not None else None
        member = self._job.members.get(node or "")
        if node is not None:
            suspicion.named.add(node)
        self._void()
        fault = ObservedFault(
            kind=FaultKind.CORRUPTION,
            reason=reason,
            ranks=(),
            node=node,
            rank=named.ranks[0] if named is not None else None,
            blamed=node,
            rack=member.rack if member is not None else None,
            convicted=moves,
        )
        self._faults.recover(fault, now)

    def _note(self, vote: Vote) -> Suspicion:
        if self._suspicion is None or self._suspicion.number != vote.version.number:
            self._suspicion = Suspicion(vote.version.number)
        self._suspicion.note(vote.ballots)
        return self._suspicion

    def _void(self) -> None:
        watermark = self._job.commits.permit.watermark
        assert watermark is not None
        self._job.make_void_above(watermark)

    def _drain(self, evidence: Evidence, now: float) -> None:
        """Nothing differs any more, so no step is lost."""
        node, reason = evidence.node, f"it has erred {self.errors[evidence.node]} times: {evidence.reason}"
        if node not in self._job.members:
            return
        if self._requests.drain(node, reason, now) is None:
            self._job.out.emit("quarantined", node=node, reason=reason)
            self._history.quarantine.add(node, reason)
        else:
            self._job.out.emit("not_quarantined", node=node, reason=reason)

    def _lift(self, suspicion: Suspicion) -> None:
        for node in sorted(suspicion.named):
            self.errors.pop(node, None)
            self._history.quarantine.lift(node)

    # --- nothing can be done ------------------------------------------------------------------------------------------

    def _end_for_wrong_claim(self, vote: Vote) -> None:
        """The replicas have differed since the job began, and do so again in the same way."""
        ranks = self._job.commits.ledger.unmatched(vote.version) or vote.ranks
        self._job.out.emit("replicas_differ", step=vote.version.number, ranks=list(ranks))
        self._ending.end_if(wrong_claim(ranks, vote.version))

    def _on_inexact_script(self, vote: Vote) -> None:
        why = (
            "every rank computed something else when the step was computed again, so the script is not deterministic "
            "on one device: call torch.use_deterministic_algorithms(True), or give --on-corruption ignore"
        )
        self._tell_unsolved(vote, why, stops=False)
        self._ending.end_if(self._job.commits.stop_withholding())

    def _give_up(self, vote: Vote, why: str, now: float) -> None:
        ranks = ", ".join(map(str, vote.ranks))
        advice = (
            "a device errs in the same way every time, or the script is not the same on all replicas: test the nodes, "
            "or correct the script; with --on-corruption go-on the job goes on, and commits nothing while they differ"
        )
        text = f"replicas on ranks {ranks} differ after step {vote.version.number}, and {why}: {advice}"
        self._tell_unsolved(vote, why, stops=self._stops)
        if not self._stops:
            self._ending.end_if(self._job.commits.stop_withholding())
            return
        self._history.retries.give_up_for(EndCause.CORRUPTION, text)
        self._redo(vote, text, now)

    def _tell_unsolved(self, vote: Vote, why: str, *, stops: bool) -> None:
        """This is told once: from here on versions that differ are passed over, and nobody is looked for."""
        self._acts, self.unsolved, self._suspicion = False, why, None
        step, ranks, nodes, digests = vote.version.number, list(vote.ranks), _nodes(vote), _digests(vote)
        self._job.out.emit(
            "corruption_unsolved", step=step, ranks=ranks, nodes=nodes, digests=digests, stops=stops, reason=why
        )

    # --- replicas agree -----------------------------------------------------------------------------------------------

    def _on_agreement(self, version: Version, ballots: dict[int, Ballot]) -> None:
        """Whoever says something else than before the redo has erred then."""
        suspicion = self._suspicion
        if suspicion is None or version.number < suspicion.number:
            return
        self._suspicion = None
        if suspicion.named:
            return  # it was clear before
        nodes = suspicion.nodes_that_changed(ballots.values()) if version.number == suspicion.number else set()
        if len(nodes) != 1 or not suspicion.is_repeated(ballots.values()):
            self._job.out.emit("corruption_unexplained", step=suspicion.number, reason=_unexplained(nodes))
            return
        evidence = suspicion.evidence(nodes.pop(), ballots.values())
        self._convict(evidence)

    # --- a step was computed twice ------------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        self.step_audits.look()

    def on_message(self, member: Member, message: FeatureMessage, now: float) -> None:
        if isinstance(message, StepDigests):
            self.step_audits.on_digests(message)

    def on_input(self, input: FeatureInput) -> None:
        if isinstance(input, StepAuditAsked):
            self.step_audits.ask(input.position)

    def on_request(self, what: str, arguments: Mapping[str, object]) -> FeatureInput | str | None:
        if what != STEP_AUDIT:
            return None
        rank = arguments.get("rank")
        position = self._job.layout.position_of(rank) if isinstance(rank, int) else None
        refusal = self.step_audits.refusal(position)
        if not self._acts:
            refusal = "nothing is done where ranks differ (--on-corruption)"
        return StepAuditAsked(position=position) if refusal is None else f"no step is audited: {refusal}"

    def _convict(self, evidence: Evidence, errors: int = 1) -> None:
        """By now all ranks agree with what they have computed before, so no step is lost for a node that leaves."""
        self._count(evidence, errors)
        if self.errors[evidence.node] >= ERRORS:
            self._to_leave = evidence

    # --- before a plan ------------------------------------------------------------------------------------------------

    def on_frozen(self) -> None:
        """Whatever the fault was: what nodes have frozen may differ, and nobody has compared it yet."""
        job, watermark = self._job, self._job.commits.permit.watermark
        self.step_audits.on_frozen()
        if not self._acts or watermark is None:
            return
        for version, ballots in frozen_ballots(job.members.values(), watermark, job.layout.world_size):
            if not job.is_void(version) and (groups := differing_groups(ballots)):
                vote = Vote(version, groups)
                self._note(vote).redone += 1
                ranks = ", ".join(map(str, vote.ranks))
                self._tell_suspicion(vote, f"replicas on ranks {ranks} have stopped with different state")
                self._void()

    # --- for status ---------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, object]:
        suspicion = self._suspicion
        told = {
            "acts": self._acts,
            "suspected_step": suspicion.number if suspicion is not None else None,
            "errors": dict(self.errors),
            "unsolved": self.unsolved,
        }
        found = {"corruption": told} if self.errors or self.unsolved or suspicion is not None else {}
        return found | self.step_audits.facts()


def _nodes(vote: Vote) -> list[str]:
    return [each.node or "lost" for each in vote.ballots]


def _digests(vote: Vote) -> list[str]:
    return [in_hex(each.digest) for each in vote.ballots]


def _unexplained(nodes: set[str]) -> str:
    if not nodes:
        return "replicas agree by now, and the version was not captured by the same ranks again: nobody can be named"
    return f"replicas agree by now, and nodes {', '.join(sorted(nodes))} said something else before: none can be named"
