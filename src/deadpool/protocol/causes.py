"""Values that decisions look at: causes, bounds, checkpoints.

Why something was refused, missed or lost, and why a job has ended: what decisions look at.

Sentences about the same stand beside these values, for people. No code looks into a sentence, because its words may
change, and a machine's or a script's own words may come to stand in it (tests/test_no_decision_by_text.py).

`Checkpoint` and `DurableSettings`: a complete durable checkpoint as the cores know it, and what they are told to do
about checkpoints. Values only.

`AdaptiveBounds`: Within which bounds a job may change its own protection, and how fast. Values only.
"""

from __future__ import annotations

from enum import Enum

from deadpool.protocol.identity import Value
from deadpool.protocol.inventory_batches import Copy
from deadpool.protocol.schemes import Scheme


class Refusal(Enum):
    """Why a node does not take what another one offers to it, or does not give what it is asked for."""

    ALREADY_STORED = "already stored"  # so its sender has what it wanted
    NO_ROOM = "no free slot"  # for now: the next permit frees slots
    DAMAGED = "damaged"  # the bytes are not those that the rank's own node had sealed
    FENCED = "fenced"
    OTHER_GENERATION = "another generation"
    OTHER_GROUP = "another group"
    EXPIRED = "no longer needed"
    NO_MEMORY = "no memory"  # the segment for it could not be allocated
    DOES_NOT_FIT = "does not fit"  # into the slot that the agent gave for it
    NOT_HERE = "not here"
    BROKEN_OFF = "broken off"  # not all of it has come
    UNANSWERED = "unanswered"  # the agent has no answer for its data plane, or leaves


class Miss(Enum):
    """Why a rank has no copy of a scheduled version, and never will."""

    NO_SLOT = "no free slot"
    SWITCHED_OFF = "switched off"  # by the script
    TOO_SLOW = "too slow"  # the optimizer would have waited for the copy longer than is allowed
    OVERWRITTEN = "overwritten"  # the script wrote to the state while it was copied
    COPY_FAILED = "copy failed"
    HEARD_TOO_LATE = "heard too late"  # of the schedule that asks for the version
    SLOT_GIVEN_BACK = "slot given back"
    DAMAGED = "damaged"  # the only copy of it, before it was stored anywhere else
    NOT_STORED = "not stored"  # by a holder, which was asked several times


class Widening(Enum):
    """Why snapshots are further apart than was asked for."""

    COST = "cost"  # steps beside a copy were measured to take longer than the budget allows
    WAITS = "waits"  # the optimizer waits for copies longer than the budget allows
    BANDWIDTH = "bandwidth"  # a version takes longer to be sent than the steps up to the next one
    SLOTS = "slots"  # as many as were asked for, or as a rank may have, do not last until a version is committed
    MEMORY = "memory"  # a node has no memory for further slots
    MISSED = "missed"  # several versions in a row, so that nothing could be measured
    FEW_FAILURES = "few failures"  # are to be expected, by --protect-at-most


class FaultKind(Enum):
    """What a fault is, as far as anything follows from it. A trainer says its own (`TrainerLost`)."""

    NODE = "node"  # it is gone, or does not do its part in time
    TRAINER = "trainer"  # a process has ended, and has not said why
    SCRIPT = "script"  # the script raised
    DEVICE = "device"  # nothing can run on a trainer's device any more
    INEXACT = "inexact"  # the script was found not to be exact, and the job is to end by that
    UNREAD = "unread"  # no process has ended: no source gave a rank its snapshot
    DAMAGED = "damaged"  # no process has ended: a node's copy of its own rank is damaged
    HANG = "hang"
    CORRUPTION = "corruption"  # no process has ended: replicas hold different state
    AUDIT = "audit"  # a rank has ended on purpose, or nobody has, and a step is computed twice
    TAKEOVER = "takeover"  # a recovery was cut short by the loss of its coordinator


class EndCause(Enum):
    """Why a job has ended, or an agent."""

    COMPLETED = "completed"
    RANK_FAILED = "rank failed"  # its script ended with a code other than 0
    FAILED_AT_END = "failed after its loop"  # the same when all steps were done: none has to be done again
    SCRIPT_FAILED = "script failed"  # in a way in which it would fail again
    INEXACT = "inexact"  # the script was found not to be exact, by a rank or by an audit
    COPIES_LOST = "copies lost"  # there is no version left that all ranks can go on from
    NOBODY_CAME_BACK = "nobody came back"  # none of the nodes that ran
    FALLBACK_UNREAD = "fallback unread"  # what was kept outside of memory, and nothing else was left
    NO_SPARE = "no spare"
    NO_PROGRESS = "no progress"
    CORRUPTION = (
        "corruption"  # replicas differ again and again, and no other node can take the place of the one at fault
    )
    REPLICAS_DIFFER = "replicas differ"  # so what the script said of its replicas is wrong
    ASKED = "asked"  # by a person, a launcher or a coordinator
    NO_STARTS = "no starts"  # trainer processes do not start on this node
    UNFIT = "unfit"  # no process of this node can take part in the job
    NO_COORDINATOR = "no coordinator"
    REFUSED = "refused"  # by the coordinator
    LEASED_ELSEWHERE = "leased elsewhere"  # the machine serves another job


class Checkpoint(Value, frozen=True, kw_only=True):
    """Complete in the store. `copies` has every rank's own seal, in the order of ranks."""

    name: str
    number: int
    copies: tuple[Copy, ...]
    recordings: tuple[bytes, ...] = ()  # of every rank; empty: the job itself has them


class DurableSettings(Value, frozen=True, kw_only=True):
    """Where and how often checkpoints are written, and how much of the machine that may take."""

    where: str
    job: str  # tells the checkpoints of this job from those of others in the same place
    every_s: float = 0.0  # 0: not by time
    every_steps: int = 0  # 0: not by steps
    bytes_per_s: float = 0.0  # of each node; 0: no limit
    nice: int = 10  # of the processes that write
    timeout_s: float = 1800.0  # after which a write is given up
    keep_last: int = 3  # 0: all
    keep_every: int = 0  # checkpoints whose step is a multiple of this stay too; 0: none


CHANGES = 6
"""The number of changes that may come within as many dwell times: six in an hour with a dwell time of ten minutes."""


class AdaptiveBounds(Value, frozen=True, kw_only=True):
    """What the user asks for at least is what the job has anyway (`Layout.holders`, the capture interval)."""

    copies_at_most: int = 0  # on other nodes, of any rank; 0: as many as the user asks for at least
    every_at_most: int = 0  # steps from one snapshot to the next while nothing looks ill; 0: the least that costs allow
    memory_share: float = 0.5  # of a node's memory that copies may take
    in_groups: Scheme | None = None  # how groups may protect ranks where copies take more memory; None: copies stay
    evict_ill: bool = False
    dwell_s: float = 600.0  # that a change stays at least; also the window over which signs are counted

    @property
    def changes_within_s(self) -> float:
        return CHANGES * self.dwell_s
