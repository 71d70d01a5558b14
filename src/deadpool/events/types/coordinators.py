"""Events of coordinators, and of the end of a job.

Events of coordinators that take over or step down, and of connections and messages that they refuse.

Events of the end of a job, and of what is written to disk then.
"""

from __future__ import annotations

from deadpool.events.event import EventType

EVENTS = (
    EventType(
        name="took_over",
        meaning="A coordinator has taken over the job from another one that died or was cut off.",
        action="Start another standby coordinator if none is left.",
        fields={
            "term": "its term",
            "running": "true: training had not paused; false: a recovery follows",
            "nodes": "the nodes that follow it",
            "alone_s": "how long before that the nodes had lost the coordinator before",
        },
        console="this is the coordinator now (term {term}), with nodes {nodes}",
    ),
    EventType(
        name="stepped_down",
        meaning="A coordinator no longer leads the job.",
        action="Look at its machine and network if `reason` is not a planned stop.",
        fields={"term": "the term that it gave up", "reason": "why"},
        console="no longer the coordinator of term {term}: {reason}",
    ),
    EventType(
        name="standby_lost",
        meaning="A standby coordinator does not answer any more: its process or its machine is gone, or cannot be "
        "reached.",
        action="Start it again with the same command; the job itself has lost nothing.",
        fields={"place": "its address", "left": "standby coordinators that still answer"},
        console="STANDBY COORDINATOR LOST: {place} does not answer; {left} left",
    ),
    EventType(
        name="no_standby",
        meaning="No standby coordinator is left: if the coordinator's machine is lost now, the job ends.",
        action="Start a standby coordinator again.",
        fields={},
        console="NO STANDBY COORDINATOR LEFT: the loss of this coordinator's machine would end the job",
    ),
    EventType(
        name="standby_back",
        meaning="A standby coordinator answers again.",
        action="Nothing.",
        fields={"place": "its address", "left": "standby coordinators that answer"},
        console="the standby coordinator at {place} answers again",
    ),
    EventType(
        name="connection_refused",
        meaning="Connections without the job's secret, or of another version of DeadPool, were refused.",
        action="Install the version that `reason` names, or find out what connects to the coordinator's port.",
        fields={"reason": "why most of them were refused", "count": "how many since the last such event"},
        console="REFUSED {count} connections: {reason}",
    ),
    EventType(
        name="message_refused",
        meaning="A node sent a message that does not fit what the job is doing; it was ignored.",
        action="Report it: this is a bug, or a node of another version of DeadPool.",
        fields={"node": "the node", "message": "the kind of message"},
        console="REFUSED a message of node {node} that does not fit: {message}",
    ),
    EventType(
        name="metrics_failed",
        meaning="A process does not serve its metrics; everything else goes on.",
        action="Give `--metrics-port` a port that is free on that machine.",
        fields={"reason": "the error"},
        console="NO METRICS: {reason}",
    ),
    EventType(
        name="hook_failed",
        meaning="A command of `--on-event` or a webhook failed or did not answer. It is told once, until it works "
        "again.",
        action="Try the command by hand with an event on its standard input, or look at the server.",
        fields={"hook": "which one", "reason": "the error"},
        console="HOOK FAILED: {hook}: {reason}",
    ),
)


END_EVENTS = (
    EventType(
        name="finished",
        meaning="Every rank has left its training loop.",
        action="Nothing.",
    ),
    EventType(
        name="lost_after_release",
        meaning="A rank was lost after all ranks had left their training loop; it is not replaced.",
        action="Nothing if what the script writes after its loop is there; else resume from it.",
        fields={
            "node": "the lost node, or the node of the lost trainer",
            "rank": "the rank of the lost trainer, where only a trainer was lost",
            "ranks": "all ranks that are lost",
            "reason": "how it was seen",
        },
    ),
    EventType(
        name="salvaging",
        meaning="The job cannot go on; nodes write the newest complete copies to disk.",
        action="Wait for `salvaged`.",
        fields={"step": "the version that is written", "nodes": "the nodes that write"},
        console="writing what is left of version {step} to disk on nodes {nodes}",
    ),
    EventType(
        name="salvaged",
        meaning="A node has written the copies that it holds.",
        action="Read them with `deadpool durable salvage FOLDER`.",
        fields={
            "node": "the node",
            "ranks": "the ranks whose copies were written",
            "folder": "where, on that node",
            "failure": "what could not be written, and why",
        },
    ),
    EventType(
        name="completed",
        meaning="The script has ended on every rank.",
        action="Nothing.",
        fields={"reason": "how it ended"},
        console="completed: {reason}",
    ),
    EventType(
        name="failed",
        meaning="The job has ended before its time.",
        action="`reason` says what to do.",
        fields={"reason": "why, and what is left of it"},
        console="FAILED: {reason}",
    ),
)
