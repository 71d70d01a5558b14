"""The coordinator's decisions: membership, generations, recoveries. No I/O; `step` is the only way in.

It holds no bulk data and nothing that could not be rebuilt from what agents report. A recovery is a walk through
phases, and a fault in any of them is simply the next generation:

    FORMING -> PREPARING -> CONNECTING -> RUNNING -> FENCING -> (WAITING ->) PREPARING -> ...
                                                             -> SALVAGING -> ENDED

What the coordinator knows is in `job.py` and `members.py`. What agents say goes through `agent_news` to the part that
decides what follows, and all other inputs through `step`. The parts, in the order in which a recovery goes through
them; each part calls only parts that come after it, so they are made from the last to the first:

    drain_requests  nodes that leave on purpose, or are too slow (`stragglers`)
    membership      nodes join, are silent, are lost, leave; phases that last too long
    faults          what follows from a fault, and the end of its generation; what earlier ones add: `fault_history`
    planning        whether all nodes are frozen, whether there is a majority; the plan: `planner`
    resumption      prepare, connect, go
    audit           a recovery is played on purpose, to find out whether the script is exact
    drain           how ranks get from a node that leaves to a spare
    rehearsals      spares rehearse ranks
    fallback        what a job goes back to that has lost every copy of a rank
    ending          completed, failed, abandoned after what is left was written to disk

While the job runs, `commits` decides which versions are committed, and `run_monitor` passes on what heartbeats tell to
`hang`, `interval` and `stragglers`. Where a step is late, `reachability` finds out whether nodes reach each other. How
a process becomes the coordinator is decided in `leadership`, and what it does first then in `takeover`. Where optional
features are called, `seams.py` lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from deadpool.protocol.causes import EndCause
from deadpool.protocol.coordinator.agent_news import AgentNews
from deadpool.protocol.coordinator.audit import RecoveryAudit
from deadpool.protocol.coordinator.commits.interval_needs import Need, SlotRoom
from deadpool.protocol.coordinator.job import JobState, Phase
from deadpool.protocol.coordinator.leadership.takeover import RecoveredView, Takeover
from deadpool.protocol.coordinator.leaving.drain import Drains
from deadpool.protocol.coordinator.leaving.drain_requests import DrainRequests
from deadpool.protocol.coordinator.leaving.ending import Ending, SalvageProgress
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.membership.membership import Membership, Timeouts
from deadpool.protocol.coordinator.membership.reachability import Reachability
from deadpool.protocol.coordinator.membership.run_monitor import RunMonitor
from deadpool.protocol.coordinator.membership.stragglers import StragglerWatch
from deadpool.protocol.coordinator.outbox import CoordinatorConfig
from deadpool.protocol.coordinator.protection.scheme_changes import NO_CHOICE, SchemeChanges
from deadpool.protocol.coordinator.recovery.fault_history import FaultHistory
from deadpool.protocol.coordinator.recovery.faults import Faults, Fencing
from deadpool.protocol.coordinator.recovery.global_plan import Vacancies
from deadpool.protocol.coordinator.recovery.planning import Planning
from deadpool.protocol.coordinator.recovery.rehearsals import Rehearsals
from deadpool.protocol.coordinator.recovery.resumption import Resumption
from deadpool.protocol.coordinator.seams import CoordinatorCore, CoordinatorParts
from deadpool.protocol.effects import CoordinatorEffect, earliest
from deadpool.protocol.features import registry
from deadpool.protocol.identity import Generation
from deadpool.protocol.inputs import (
    AuditAsked,
    CoordinatorInput,
    CoordinatorNews,
    DrainAsked,
    FeatureInput,
    FromAgent,
    LinkLost,
    SchemeAsked,
    Stalled,
    StopAsked,
    Tick,
)
from deadpool.protocol.messages import Join, Overhead, SlotReport
from deadpool.protocol.schemes import Scheme


class Coordinator:
    def __init__(self, config: CoordinatorConfig, *, term: int = 1, name: str = "") -> None:
        """`name` tells apart two processes that ask for the same term."""
        self.redundancy = redundancy = registry.redundancy()
        vacancies = registry.vacancies(config)
        self._job = job = JobState(config, term=term, name=name, vacancies=vacancies, redundancy=redundancy)
        self.settings, self.layout, self.term = job.settings, job.layout, term
        self.commits = job.commits
        self._monitor = monitor = RunMonitor(job)
        self._reachability = Reachability(job, monitor.hang)
        self.fallback = fallback = registry.fallback(job)
        self._ending = ending = Ending(job, fallback)
        self._rehearsals = rehearsals = Rehearsals(job)
        self.drains = drains = Drains(job, rehearsals)
        self._history = history = FaultHistory(job, rehearsals)
        self._resumption = resumption = Resumption(job, drains, rehearsals, monitor.hang, ending, fallback)
        self._planning = planning = Planning(job, history, monitor.hang, resumption, ending, fallback)
        self._fencing = fencing = Fencing(job, monitor, drains, rehearsals, history, planning)
        self.audit = audit = RecoveryAudit(job, rehearsals, drains, ending)
        self._faults = faults = Faults(job, history, monitor.hang, fencing, resumption, ending, fallback, audit)
        self._membership = membership = Membership(job, history, rehearsals, faults, planning, ending, fallback)
        self._drain_requests = requests = DrainRequests(job, drains, fencing, membership)
        self.schemes = schemes = SchemeChanges(job, drains)
        core = CoordinatorCore(
            job=job,
            monitor=monitor,
            history=history,
            rehearsals=rehearsals,
            drains=drains,
            requests=requests,
            schemes=schemes,
            fallback=fallback,
            faults=faults,
            ending=ending,
            audit=audit,
        )
        self.features = CoordinatorParts(registry.coordinator_parts(core))
        job.commits.is_withheld, planning.on_frozen = self.features.withholds, self.features.on_frozen
        self._timeouts = Timeouts(job, membership, planning, resumption, ending)
        self._takeover = Takeover(job, monitor, history, rehearsals, faults, resumption)
        self._agent_news = AgentNews(
            job,
            membership=membership,
            faults=faults,
            fencing=fencing,
            resumption=resumption,
            rehearsals=rehearsals,
            drains=drains,
            drain_requests=requests,
            monitor=monitor,
            reachability=self._reachability,
            audit=audit,
            ending=ending,
            features=self.features,
        )

    # --- the contract of a core ---------------------------------------------------------------------------------------

    def step(self, input: CoordinatorInput, *, now: float) -> list[CoordinatorEffect]:
        job = self._job
        if job.phase is Phase.ENDED:
            self._answer_after_end(input)
            return job.out.take()
        if self._resumption.settles_at is not None:
            self._resumption.settle()
        if isinstance(input, FromAgent):
            self._agent_news.on_message(input.node, input.message, now)
        else:
            self._on_input(input, now)
        self._drain_requests.grant_leaves(now)
        for part in self.features:
            part.advance(now)
        self._drain_requests.advance(now)
        self._conclude(now)
        return job.out.take()

    def _on_input(self, input: CoordinatorNews, now: float) -> None:
        match input:
            case LinkLost(node=node, reason=reason):
                self._membership.lose_node(node, f"link to node {node} lost: {reason}", now)
            case StopAsked(reason=reason):
                self._ending.end(EndCause.ASKED, reason, failed=True)
            case DrainAsked(node=node, reason=reason):
                self._drain_requests.drain(node, reason, now)
            case SchemeAsked(scheme=scheme):
                self._on_scheme_asked(scheme, now)
            case AuditAsked():
                self.audit.ask()
            case FeatureInput():
                for part in self.features:
                    part.on_input(input)
            case Stalled(seconds=seconds):
                self._discount_stall(seconds)
            case Tick():
                self._timeouts.check(now)
            case _ as never:
                assert_never(never)

    def _on_scheme_asked(self, scheme: Scheme | None, now: float) -> None:
        """A person says how snapshots are protected or, with None, leaves it to the job."""
        if scheme is None:
            for part in self.features:
                if part.chooses_scheme:
                    part.choose_scheme_again(now)
        elif self.schemes.refusal(scheme) is None:
            is_placed_anew = self.schemes.use(scheme, "asked to", now)
            for part in self.features:
                part.on_scheme_asked(is_placed_anew, now)

    def _conclude(self, now: float) -> None:
        """What is to be kept at the end of the job is begun before the job ends."""
        if self._job.phase is not Phase.ENDED:
            for part in self.features:
                part.conclude(now)
            self._ending.end_if_kept()

    def _answer_after_end(self, input: CoordinatorInput) -> None:
        """A node that joins now would wait for a welcome, and this process would wait for the node to leave."""
        if isinstance(input, FromAgent) and isinstance(input.message, Join):
            self._job.out.send(input.node, self._ending.shutdown)

    def _discount_stall(self, seconds: float) -> None:
        """Rule 20, timeouts: this process did not run for so long."""
        history = (self._history.quarantine, self._history.rates)
        parts = (self._timeouts, self._monitor.hang, self._reachability, *history, self.drains)
        for keeps_time in (*parts, *self.features):
            keeps_time.discount_stall(seconds)

    def take_over(self, view: RecoveredView, *, now: float) -> list[CoordinatorEffect]:
        """The only other way in (rule 18, one coordinator per term): what a successor finds, and after that what nodes
        would have told a coordinator in between."""
        self._takeover.take_over(view, now)
        for missed in view.missed_messages() if view.is_running else ():
            if self.phase is not Phase.ENDED:
                self._agent_news.on_message(missed.node, missed.message, now)
        return self._job.out.take()

    def deadline(self) -> float | None:
        """Returns when to send a Tick at the latest."""
        job = self._job
        if job.phase is Phase.ENDED:
            return None
        if self._resumption.settles_at is not None:
            return self._resumption.settles_at
        parts = earliest(self.drains.deadline, self.features.deadline())
        return earliest(self._timeouts.next_silence(), earliest(job.phase_deadline, parts))

    def check(self) -> None:
        """Invariants, for tests and the simulator."""
        self.commits.check()
        seated = [m.position for m in self.members.values() if m.position is not None]
        assert len(seated) == len(set(seated)), seated

    # --- for status, leadership and the simulator ---------------------------------------------------------------------

    @property
    def generation(self) -> Generation:
        return self._job.generation

    @property
    def cause(self) -> str:
        return self._job.cause

    @property
    def phase(self) -> Phase:
        return self._job.phase

    @property
    def members(self) -> dict[str, Member]:
        return self._job.members

    @property
    def seats(self) -> tuple[str, ...]:
        return self._job.seats

    @property
    def is_full(self) -> bool:
        """Every position has a node of its own."""
        return self._job.is_full

    @property
    def released(self) -> bool:
        """Every rank has completed its last step (rule 33, a fence takes the release back)."""
        return self._job.released

    @property
    def vacancies(self) -> Vacancies:
        """What becomes of positions that no node can take."""
        return self._job.vacancies

    @property
    def scheme(self) -> Scheme:
        """How snapshots are protected, from the next plan on at the latest."""
        return self._job.scheme

    @property
    def has_majority(self) -> bool:
        return self._job.has_majority

    @property
    def is_cut_off(self) -> bool:
        return self._planning.wait.is_cut_off

    @property
    def stragglers(self) -> StragglerWatch:
        return self._monitor.stragglers

    @property
    def overhead(self) -> Overhead | None:
        """What protection costs, measured; None: not known yet."""
        return self._monitor.interval_chooser.overhead

    @property
    def slots(self) -> Mapping[str, SlotReport]:
        """By node, how many slots its ranks have and could have. Empty where a user has said how many."""
        return self._monitor.interval_chooser.slots

    @property
    def slot_room(self) -> SlotRoom:
        return self._monitor.interval_chooser.slot_room

    @property
    def interval_widened(self) -> Need | None:
        """Why snapshots are further apart than was asked for; None: they are not, or an earlier coordinator knew."""
        return self._monitor.interval_chooser.widened

    @property
    def salvage(self) -> SalvageProgress:
        return self._ending.salvage

    def has_seat(self, node: str) -> bool:
        """Whether the node is a member that holds ranks."""
        return node in self.members and self.members[node].position is not None

    def refusal_of_scheme(self, scheme: Scheme | None) -> str | None:
        """Why snapshots cannot be protected in this way or, with None, why the job cannot choose; None: it can."""
        if scheme is None:
            return None if self.features.chooses_scheme else NO_CHOICE
        return self.schemes.refusal(scheme)

    def refusal_to_drain(self, node: str) -> str | None:
        """Why this node cannot be drained now; None: it can."""
        return self._drain_requests.refusal(node)

    def why_quarantined(self, node: str) -> str | None:
        return self._history.quarantine.why(node)
