"""Events of a pool of spare machines, in the log of the pool and in those of its machines."""

from __future__ import annotations

from deadpool.events.types.event_type import EventType

_HOST, _JOB = "the machine", "the job"

EVENTS = (
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
