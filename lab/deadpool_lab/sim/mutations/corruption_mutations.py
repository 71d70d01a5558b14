"""Mutations of rule 34 (replicas vote) and of rule 35 (an audited step is computed twice)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from deadpool.protocol.coordinator.commits.ledger import Ledger
from deadpool.protocol.coordinator.job import JobState
from deadpool.protocol.features.corruption.coordinator import corruption, findings, judges, step_audits
from deadpool.protocol.features.corruption.coordinator.computations import Difference, OddOne, Stage
from deadpool.protocol.features.corruption.coordinator.corruption import Corruption
from deadpool.protocol.features.corruption.coordinator.judges import Computed, Decision, Settled, Turn
from deadpool.protocol.features.corruption.coordinator.step_audits import StepAudits
from deadpool.protocol.features.corruption.coordinator.votes import Digest, Group, Suspicion
from deadpool.protocol.identity import Version
from deadpool.protocol.messages import StepAudit
from deadpool_lab.sim.mutations.mutation import Mutation, Patch


def version_that_differs_is_committed(patch: Patch) -> None:
    patch.set(Corruption, "withholds", lambda self, version: False)
    patch.set(Ledger, "unmatched", lambda self, version: ())


def what_follows_is_not_void(patch: Patch) -> None:
    patch.set(JobState, "make_void_above", lambda self, version: None)


def nothing_is_compared_under_a_fence(patch: Patch) -> None:
    patch.set(Corruption, "on_frozen", lambda self: None)


def half_is_a_majority(patch: Patch) -> None:
    def majority(self: Group) -> Digest | None:
        return Counter(each.digest for each in self.ballots).most_common(1)[0][0]

    patch.set(Group, "majority", property(majority))


def watermark_is_void_too(patch: Patch) -> None:
    real = JobState.make_void_above

    def make_void_above(self: JobState, version: Version) -> None:
        real(self, Version(version.generation, version.number - 1))

    patch.set(JobState, "make_void_above", make_void_above)


def first_that_changes_is_named(patch: Patch) -> None:
    """Names a node also where all have changed, since the script is not exact."""
    real = Suspicion.changed

    def changed(self: Suspicion, ballots):  # type: ignore[no-untyped-def]
        return real(self, ballots)[:1]

    patch.set(Suspicion, "changed", changed)
    patch.set(Suspicion, "is_repeated", lambda self, ballots: True)


# --- steps that are computed twice ------------------------------------------------------------------------------------


def named_for_a_sum(patch: Patch) -> None:
    """Names whoever differs first, also where a sum has passed through others."""
    real = vars(OddOne)["difference"].fget

    def found(self: OddOne) -> Difference:
        told = real(self)
        return Difference(Stage.AFTER, told.ranks) if told.stage is Stage.REDUCED else told

    patch.set(OddOne, "difference", property(found))


def redo_is_believed_because_it_came_last(patch: Patch) -> None:
    def judge(self: StepAudits, order: StepAudit) -> None:
        if not self._computed[-1].agrees_with(self._computed[-2]):
            del self._computed[:-2]
        self._conclude(order, lambda case: self.verdicts.settle(case, Settled((case.computed[-1],))), None)

    patch.set(StepAudits, "_judge", judge)


def one_error_is_enough(patch: Patch) -> None:
    patch.set(corruption, "ERRORS", 1)


def later_computation_is_not_void(patch: Patch) -> None:
    """Ranks keep what differs, and go on from it if a fault comes before the step is computed once more."""
    patch.set(StepAudits, "on_frozen", lambda self: None)
    patch.set(JobState, "make_void_above", lambda self, version: None)


# --- a spare is the judge ---------------------------------------------------------------------------------------------


def node_that_repeats_itself_is_believed(patch: Patch) -> None:
    """Two computations that agree settle it, also if both are of one node."""
    real = judges.decide

    def decide(computed: Sequence[Computed], turn: Turn | None, spares: Sequence[str]) -> Decision:
        alike = tuple(each for each in computed if each.agrees_with(computed[-1]))
        return Settled(alike) if len(alike) > 1 else real(computed, turn, spares)

    patch.set(step_audits, "decide", decide)


def turn_passes_without_a_judge(patch: Patch) -> None:
    def begin_turn(self: StepAudits, order: StepAudit, settled: Settled) -> bool:
        if self.due is not None:
            self.turns.on_audit(self.due)
        return False

    patch.set(StepAudits, "_begin_turn", begin_turn)


def node_is_named_for_its_position(patch: Patch) -> None:
    def nodes_only_in(odd: Sequence[Computed], settled: Settled) -> set[str]:
        return {odd[0].seats[0]}

    patch.set(findings, "nodes_only_in", nodes_only_in)


MUTATIONS = [
    Mutation(70, "version that differs is committed", version_that_differs_is_committed, rule=34, profile="corruption"),
    Mutation(71, "what follows is not void", what_follows_is_not_void, rule=34, profile="corruption"),
    Mutation(72, "nothing compared under a fence", nothing_is_compared_under_a_fence, rule=34, profile="corruption"),
    Mutation(73, "half is a majority", half_is_a_majority, rule=34, profile="corruption"),
    Mutation(74, "watermark is void too", watermark_is_void_too, rule=34, profile="corruption"),
    Mutation(75, "first that changes is named", first_that_changes_is_named, rule=34, profile="corruption"),
    Mutation(76, "named for a sum", named_for_a_sum, rule=35, profile="step_audits"),
    Mutation(
        77, "redo believed for coming last", redo_is_believed_because_it_came_last, rule=35, profile="step_audits"
    ),
    Mutation(78, "one error is enough", one_error_is_enough, rule=35, profile="step_audits"),
    Mutation(79, "later computation is not void", later_computation_is_not_void, rule=35, profile="step_audits"),
    Mutation(
        80, "node that repeats itself is believed", node_that_repeats_itself_is_believed, rule=36, profile="judges"
    ),
    Mutation(81, "turn passes without a judge", turn_passes_without_a_judge, rule=36, profile="judges"),
    Mutation(82, "node named for its position", node_is_named_for_its_position, rule=36, profile="judges"),
]
