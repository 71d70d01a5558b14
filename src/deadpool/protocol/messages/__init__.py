"""Every message between coordinator, agents and trainers. Values only; wire/ turns them into bytes.

A message that depends on the seating of ranks carries the generation in which it was sent. Its receiver drops it before
anything else is done with it if that generation is over. There are three conversations, in the order of a recovery:

    agent -> coordinator    Join TakeoverReport Heartbeat Health Trainers TrainerLost Recording Sealed Missed Stored
                            Encoded Durable FenceAck CopyLost NodePrepared NodeConnected Probed Finished Ended
                            Standing Leave Unavailable Salvaged CheckpointPart CheckpointDone Digested StepDigests
                            CodeOffered AskCode CodeList CodeChunk Report
    coordinator -> agent    Welcome JoinRefused Alive Recording Fence Rehearse Needed Plan Connect Go Permit Probe
                            Release Stand Proceed CopyLost Salvage WriteCheckpoint FinishCheckpoint AbandonCheckpoint
                            Audit StepAudit AuditOver CodeOffered AskCode CodeList CodeChunk Shutdown (each in an
                            Order, which names the term), Injection
    agent <-> trainer       TrainerHello Settings Recording Rehearse Seat Attach Detach Grant Halt Arriving Restore
                            Connect Go Final Reschedule Stand Proceed Release Ping End Injection Audit StepAudit
                            AuditOver Declare Captured Missed Parked Halted Prepared Connected Stepped Paused Waits
                            Standing Finished GroupsDestroyed Exits Pong Report Failed DeviceLost Hung Injected
                            UsesShares UsesCode Digested StepDigests

Each file holds what both sides say about one subject, with the values inside those messages:

    joining             a node joins, a coordinator takes over
    trainer_processes   which trainers a node has, how they start and end
    rehearsals          what a spare needs to rehearse a rank
    progress            how far the ranks are, what protection costs
    health              signs of illness of a node
    copies              a version from the slot to the seal, the holders and the permit
    fences              a recovery begins: the generation ends, all nodes come to rest
    plans               what each node has to do in the next generation
    seats               each rank takes its seat, loads, connects; Go ends the recovery
    reachability        which nodes reach each other
    drains              a node leaves on purpose
    audits              a recovery is played on purpose, and what is computed again is compared
    step_audits         one step is computed twice, and each rank compares what it computed
    compiled_code       what live ranks have compiled comes to spares
    leases              a spare's machine may serve several jobs
    checkpoints         committed versions on disk or in an object store
    ending              the job is complete, or cannot go on
    commands            what people ask of a job and read of it
    pools               a pool of spare machines for several jobs, which is no coordinator
    order               the envelope of what a coordinator says to agents

All other code imports the names from here.
"""

from __future__ import annotations

from typing import TypeGuard, get_args

from deadpool.protocol.identity import Message
from deadpool.protocol.inventory_batches import Copy, Inventory, JointCopy, Live, Lives, NodeCopies
from deadpool.protocol.messages.commands import (
    Answer,
    Ask,
    Assignment,
    Examine,
    Examined,
    Facts,
    Injected,
    Injection,
    MachineState,
    PoolJob,
    PoolNotice,
    Report,
)
from deadpool.protocol.messages.compiled_code import (
    CHUNK_BYTES,
    AskCode,
    CodeChunk,
    CodeFile,
    CodeList,
    CodeOffered,
    UsesCode,
)
from deadpool.protocol.messages.copies import (
    AbandonCheckpoint,
    Attach,
    Captured,
    CheckpointDone,
    CheckpointPart,
    CopyLost,
    Declare,
    Detach,
    Durable,
    Encoded,
    Final,
    FinishCheckpoint,
    Grant,
    Missed,
    Permit,
    Reschedule,
    Sealed,
    SlotRef,
    Stored,
    WriteCheckpoint,
)
from deadpool.protocol.messages.ending import (
    Ended,
    Exits,
    Finished,
    GroupsDestroyed,
    Leave,
    Ping,
    Pong,
    Proceed,
    Release,
    Salvage,
    Salvaged,
    Shutdown,
    Stand,
    Standing,
)
from deadpool.protocol.messages.joining import (
    Disconnecting,
    Join,
    JoinRefused,
    Needed,
    Peer,
    Probe,
    Probed,
    Settings,
    TakeoverReport,
    Unavailable,
    Welcome,
)
from deadpool.protocol.messages.plans import (
    Block,
    Fence,
    FenceAck,
    Fetch,
    Halt,
    Halted,
    Holder,
    Order,
    OrderMessage,
    Plan,
    RankOrder,
    Rebuild,
    Source,
)
from deadpool.protocol.messages.progress import (
    WAITS_FOR_DATA,
    WAITS_FOR_PEERS,
    Alive,
    CaptureCostReport,
    Health,
    Heartbeat,
    Overhead,
    Paused,
    Sign,
    SlotReport,
    Stepped,
    Waits,
    WorkTime,
)
from deadpool.protocol.messages.rehearsals import Audit, AuditOver, Digested, Parked, Part, Recording, Rehearse
from deadpool.protocol.messages.seats import (
    Arriving,
    Connect,
    Connected,
    Go,
    NodeConnected,
    NodePrepared,
    Prepared,
    Restore,
    Seat,
)
from deadpool.protocol.messages.step_audits import StepAudit, StepDigests
from deadpool.protocol.messages.trainer_processes import (
    DeviceLost,
    End,
    Failed,
    Hung,
    Shares,
    TrainerHello,
    TrainerInfo,
    TrainerLost,
    Trainers,
    UsesShares,
)

ALL: tuple[type[Message], ...] = (
    AbandonCheckpoint, Alive, Answer, Arriving, Ask, AskCode, Assignment, Attach, Audit, AuditOver, Captured,
    CheckpointDone, CheckpointPart, CodeChunk, CodeList, CodeOffered, Connect, Connected, Declare, Detach, DeviceLost,
    Digested, Disconnecting, Durable, Encoded, End, Ended, Examine, Examined, Exits, Facts, Failed, Fence, FenceAck,
    Final, FinishCheckpoint, Finished, Go, Grant, GroupsDestroyed, Halt, Halted, Health, Heartbeat, MachineState, Hung,
    Injected, Injection, Join, JoinRefused, Leave, Missed, Needed, NodeConnected, NodePrepared, Order, Parked, Paused,
    Permit, Ping, Plan, Pong, PoolNotice, Prepared, Probe, Probed, Proceed, Recording, Rehearse, Release, Report,
    Reschedule, Restore, Salvage, Salvaged, Sealed, Seat, Settings, Shutdown, CopyLost, Stand, Standing, StepAudit,
    StepDigests, Stepped, Stored, TakeoverReport, TrainerHello, TrainerLost, Trainers, Unavailable, UsesCode,
    UsesShares, Waits, Welcome, WriteCheckpoint,
)  # fmt: skip
"""What may be sent. Nothing else is made of received bytes, but for the values that these declare as fields."""

AgentMessage = (
    Heartbeat | Sealed | Stored | FenceAck | NodePrepared | NodeConnected | Join | TakeoverReport | Disconnecting
    | Health | Trainers | TrainerLost | Recording | Missed | Encoded | Durable | CopyLost | Probed | Finished | Ended
    | Standing | Leave | Unavailable | Salvaged | CheckpointPart | CheckpointDone | Digested | StepDigests
    | CodeOffered | AskCode | CodeList | CodeChunk | Report
)  # fmt: skip
"""What an agent tells the core of a coordinator."""

TrainerMessage = (
    TrainerHello | Recording | Declare | Captured | Missed | Parked | Halted | Prepared | Connected | Stepped | Paused
    | Waits | Standing | Finished | GroupsDestroyed | Exits | Pong | Report | Failed | DeviceLost | Hung | UsesShares
    | Digested | StepDigests | CopyLost | Durable | UsesCode
)  # fmt: skip
"""What a trainer tells the core of its agent."""

ToTrainerMessage = (
    Settings | Recording | Rehearse | Seat | Attach | Detach | Grant | Halt | Arriving | Restore | Connect | Go | Final
    | Reschedule | Stand | Proceed | Release | Ping | End | Injection | Audit | StepAudit
    | AuditOver
)  # fmt: skip

_AGENT_MESSAGES, _TRAINER_MESSAGES = frozenset(get_args(AgentMessage)), frozenset(get_args(TrainerMessage))


def is_from_agent(message: Message) -> TypeGuard[AgentMessage]:
    """Asked before a core sees it: a peer may have sent any message that there is."""
    return type(message) in _AGENT_MESSAGES


def is_from_trainer(message: Message) -> TypeGuard[TrainerMessage]:
    return type(message) in _TRAINER_MESSAGES


__all__ = [
    "ALL",
    "CHUNK_BYTES",
    "WAITS_FOR_DATA",
    "WAITS_FOR_PEERS",
    "AbandonCheckpoint",
    "AgentMessage",
    "Alive",
    "Answer",
    "Arriving",
    "Ask",
    "AskCode",
    "Assignment",
    "Attach",
    "Audit",
    "AuditOver",
    "Block",
    "CaptureCostReport",
    "Captured",
    "CheckpointDone",
    "CheckpointPart",
    "CodeChunk",
    "CodeFile",
    "CodeList",
    "CodeOffered",
    "Connect",
    "Connected",
    "Copy",
    "CopyLost",
    "Declare",
    "Detach",
    "DeviceLost",
    "Digested",
    "Disconnecting",
    "Durable",
    "Encoded",
    "End",
    "Ended",
    "Examine",
    "Examined",
    "Exits",
    "Facts",
    "Failed",
    "Fence",
    "FenceAck",
    "Fetch",
    "Final",
    "FinishCheckpoint",
    "Finished",
    "Go",
    "Grant",
    "GroupsDestroyed",
    "Halt",
    "Halted",
    "Health",
    "Heartbeat",
    "Holder",
    "Hung",
    "Injected",
    "Injection",
    "Inventory",
    "Join",
    "JoinRefused",
    "JointCopy",
    "Leave",
    "Live",
    "Lives",
    "MachineState",
    "Missed",
    "Needed",
    "NodeConnected",
    "NodeCopies",
    "NodePrepared",
    "Order",
    "OrderMessage",
    "Overhead",
    "Parked",
    "Part",
    "Paused",
    "Peer",
    "Permit",
    "Ping",
    "Plan",
    "Pong",
    "PoolJob",
    "PoolNotice",
    "Prepared",
    "Probe",
    "Probed",
    "Proceed",
    "RankOrder",
    "Rebuild",
    "Recording",
    "Rehearse",
    "Release",
    "Report",
    "Reschedule",
    "Restore",
    "Salvage",
    "Salvaged",
    "Sealed",
    "Seat",
    "Settings",
    "Shares",
    "Shutdown",
    "Sign",
    "SlotRef",
    "SlotReport",
    "Source",
    "Stand",
    "Standing",
    "StepAudit",
    "StepDigests",
    "Stepped",
    "Stored",
    "TakeoverReport",
    "ToTrainerMessage",
    "TrainerHello",
    "TrainerInfo",
    "TrainerLost",
    "TrainerMessage",
    "Trainers",
    "Unavailable",
    "UsesCode",
    "UsesShares",
    "Waits",
    "Welcome",
    "WorkTime",
    "WriteCheckpoint",
    "is_from_agent",
    "is_from_trainer",
]  # fmt: skip
