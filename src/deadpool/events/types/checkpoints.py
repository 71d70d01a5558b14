"""Events of durable checkpoints, of injected faults, and of pools.

Events of durable checkpoints.

Events of faults that a user injects.

Events of a pool of spare machines, in the log of the pool and in those of its machines.
"""

from __future__ import annotations

from deadpool.events.event import EventType

_NAME = "the folder of the checkpoint in `--durable`"

EVENTS = (
    EventType(
        name="checkpoint_begun",
        meaning="A durable checkpoint of a committed version is being written in the background.",
        action="Nothing.",
        fields={"step": "the version", "name": _NAME},
    ),
    EventType(
        name="checkpoint_written",
        meaning="A durable checkpoint is complete: a job can begin from it after everything else is lost.",
        action="Nothing.",
        fields={
            "step": "the version",
            "name": _NAME,
            "bytes": "its size",
            "seconds": "how long it took",
            "failures": "attempts that failed since the one before",
        },
        console="durable checkpoint after {step} steps is complete: {name}",
    ),
    EventType(
        name="checkpoint_failed",
        meaning="A durable checkpoint could not be written, and is tried again later. Training goes on, and the "
        "checkpoint before it stays. This is told once until one is written, and for each one that was asked for; "
        "`deadpool status` counts the failures.",
        action="Look at the reason: a full disk, missing rights, an object store that does not answer.",
        fields={"step": "the version", "name": _NAME, "reason": "the error, with the node"},
        console="NO CHECKPOINT after {step} steps: {reason}; training goes on, it is tried again",
    ),
    EventType(
        name="checkpoint_late",
        meaning="The write of a durable checkpoint takes long: its store may hang. Training goes on.",
        action="Look at the store from the nodes named. Give `--durable-timeout-s` more time if it is only slow.",
        fields={
            "step": "the version",
            "name": _NAME,
            "nodes": "nodes that are not done",
            "seconds": "since it began",
        },
        console="the durable checkpoint after {step} steps takes long: {nodes} still write after {seconds} s",
    ),
    EventType(
        name="checkpoint_interval",
        meaning="A durable checkpoint took longer to write than `--durable-every` asks for one. The next is begun when "
        "it is done, so checkpoints are further apart than that.",
        action="Give a longer `--durable-every`, more `--durable-bandwidth`, or a faster store.",
        fields={"seconds": "what it took", "every_s": "the interval that was asked for"},
        console="CHECKPOINTS ARE LATE: one took {seconds} s, and --durable-every asks for one every {every_s:g} s",
    ),
    EventType(
        name="checkpoint_skipped",
        meaning="A complete durable checkpoint is damaged: files are missing or cut short, or bytes have changed. The "
        "job goes back to an older one.",
        action="Find out what deletes files in the store. `deadpool durable verify` says what else is damaged. Delete "
        "the checkpoint's folder, so that it is not counted among those that are kept.",
        fields={"step": "its version", "name": _NAME, "reason": "which file, and what is wrong with it"},
        console="SKIPPED: the durable checkpoint after {step} steps cannot be read ({name}: {reason})",
    ),
    EventType(
        name="checkpoint_found",
        meaning="There is a complete durable checkpoint that the job begins from, or may fall back to.",
        action="Nothing.",
        fields={"step": "its version", "name": _NAME},
        console="durable checkpoint after {step} steps found: {name}",
    ),
)


_WHERE = {"rank": "the rank that is hit", "at": "the moment of training", "signal": "the signal's number"}
_STEP = {"step": "the step or version of that moment"}

_FLIPS = {
    "flips": "what a bit of flips, as `deadpool node flip --what` names it; absent: a signal is sent",
    "lasts": "whether one flips in each later step on this device too",
}

INJECTION_EVENTS = (
    EventType(
        name="signal_sent",
        meaning="A signal was sent to a node or to one trainer, by `deadpool node kill`.",
        action="Nothing: a `fault` follows.",
        fields={"node": "the node", "rank": "the rank; empty: the whole node", "signal": "the signal's number"},
    ),
    EventType(
        name="injection_ordered",
        meaning="A fault is to be injected when a node or a rank reaches a moment of training.",
        action="Nothing: `injected` or `injection_missed` follows.",
        fields={
            "node": "the node",
            "rank": "the rank; empty: the first rank of the node that comes to the moment",
            "at": "the moment of training",
            **_STEP,
            "signal": "the signal's number",
            "when": "the moment in words",
        },
        console="fault ordered for node {node}: {when}",
    ),
    EventType(
        name="injection_set",
        meaning="The trainer, or the agent, that the fault waits in has the order.",
        action="Nothing.",
        fields={**_WHERE, **_STEP, **_FLIPS, "trainer": "the trainer; empty: the agent injects it"},
    ),
    EventType(
        name="injected",
        meaning="The moment has come, and the signal is sent, or a bit has flipped.",
        action="Nothing: a `fault` follows.",
        fields={
            **_WHERE,
            **_STEP,
            "trainer": "the trainer; empty: the agent injects it",
            **_FLIPS,
        },
        console="fault injected: rank {rank} has reached {at}",
    ),
    EventType(
        name="injection_missed",
        meaning="The moment did not come in its step, and the fault is not injected.",
        action="Order it again for a later step.",
        fields={**_WHERE, **_STEP, **_FLIPS, "trainer": "the trainer; empty: the agent was to inject it"},
        console="fault NOT injected: {at} of step {step} did not come to rank {rank}",
    ),
)


_HOST, _JOB = "the machine", "the job"

POOL_EVENTS = (
    EventType(
        name="pool_host_joined",
        meaning="A machine has joined the pool, or has come back to it.",
        action="Nothing.",
        fields={"host": _HOST, "memory_bytes": "memory that its parked trainers may take"},
        console="machine {host} joined the pool",
    ),
    EventType(
        name="pool_host_lost",
        meaning="A machine has left the pool, or the connection to it has ended. A job that has it keeps it.",
        action="Look at the machine if it does not come back.",
        fields={"host": _HOST, "reason": "how that was seen"},
        console="machine {host} is lost to the pool: {reason}",
    ),
    EventType(
        name="pool_host_refused",
        meaning="Two machines call themselves by one name. The second is refused, and tries again.",
        action="Give one of them another --name.",
        fields={"host": "the name", "reason": "which machines these are"},
        console="a second machine {host} is refused: {reason}",
    ),
    EventType(
        name="pool_job_added",
        meaning="The pool serves this job from here on, or serves it otherwise than before.",
        action="Nothing.",
        fields={"job": _JOB, "priority": "the higher, the sooner machines park trainers for it"},
        console="job {job} added",
    ),
    EventType(
        name="pool_job_removed",
        meaning="The pool serves this job no more. A machine that the job has stays with it until it gives it back.",
        action="Nothing.",
        fields={"job": _JOB},
        console="job {job} removed",
    ),
    EventType(
        name="pool_assigned",
        meaning="A machine was told for which jobs to keep trainers parked.",
        action="Nothing.",
        fields={"host": _HOST, "jobs": "the jobs, the most important first"},
        console="machine {host} keeps trainers parked for {jobs}",
    ),
    EventType(
        name="pool_leased",
        meaning="A job has taken this machine; its agents in other jobs leave these.",
        action="Nothing.",
        fields={"host": _HOST, "job": _JOB},
        console="machine {host} is leased to job {job}",
    ),
    EventType(
        name="pool_released",
        meaning="The job's node on this machine has ended: the machine is free for all jobs again.",
        action="Nothing.",
        fields={"host": _HOST, "job": _JOB},
        console="machine {host} is free again, job {job} gave it back",
    ),
    EventType(
        name="pool_agent_ended",
        meaning="An agent of this machine has ended: its job ended, or another job has the machine, or it failed.",
        action="Read its log in the machine's folder if this happens again and again.",
        fields={
            "host": _HOST,
            "job": _JOB,
            "code": "its exit code; 127: it could not be started",
            "again_in_s": "seconds until it may start again",
            "reason": "why it could not be started, if so",
        },
    ),
)
