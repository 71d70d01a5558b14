"""Events of nodes that come and go.

Events of nodes that join, are lost, come back or are kept out.

Events of nodes that leave on purpose, and of slow nodes.
"""

from __future__ import annotations

from deadpool.events.event import EventType

EVENTS = (
    EventType(
        name="joined",
        meaning="A node's agent has connected, and the node is part of the job.",
        action="Nothing.",
        fields={"node": "its name", "spare": "true: it has no ranks yet and waits to take those of a lost node"},
        console="node {node} joined",
    ),
    EventType(
        name="machine",
        meaning="What a node has reported of its machine, once after it joined.",
        action="Nothing; the dashboard compares copies with it.",
        fields={
            "node": "its name",
            "rack": "its rack; empty: a rack of its own",
            "memory_bytes": "memory of the machine",
            "link_gbps": "GB/s that its network card reports; empty: it does not tell",
        },
    ),
    EventType(
        name="spare_lost",
        meaning="A node without ranks is gone; training is not affected.",
        action="Replace it if `no_spare` follows.",
        fields={"node": "its name", "reason": "how the loss was seen"},
        console="spare node {node} is lost: {reason}",
    ),
    EventType(
        name="no_spare",
        meaning="The last spare is gone or has taken ranks.",
        action="Start one (`deadpool agent --spare --join HOST:PORT SCRIPT`); without one the job pauses after the "
        "next loss.",
        fields={"reason": "the same in words"},
        console="NO SPARE: {reason}; add one with: deadpool agent --spare --join HOST:PORT SCRIPT",
    ),
    EventType(
        name="returned",
        meaning="A node that was taken for lost is back, and is a spare now.",
        action="Nothing; look at its network if this happens again.",
        fields={"node": "its name", "copies": "the copies that it still holds, as RANK:VERSION"},
        console="node {node} is back and a spare; it still holds copies {copies}",
    ),
    EventType(
        name="isolated",
        meaning="A node reached no coordinator for the isolation timeout, and ended its trainers.",
        action="Look at the network between this node and the coordinators.",
        fields={"reason": "how long it searched"},
        console="node {node} ended its trainers: {reason}",
    ),
    EventType(
        name="quarantined",
        meaning="A node had too many faults: it gets no more ranks, and a spare takes those that it had.",
        action="Check the machine, then drain it; `--quarantine-after` sets the limit.",
        fields={"node": "its name", "reason": "its faults"},
        console="QUARANTINED: node {node}: {reason}; its ranks go to a spare",
    ),
    EventType(
        name="not_quarantined",
        meaning="A node had too many faults, but no healthy spare could take its ranks, so it keeps them.",
        action="Start a spare: `deadpool agent --spare --join HOST:PORT SCRIPT`.",
        fields={"node": "its name", "reason": "its faults"},
        console="node {node} should be quarantined ({reason}), but there is no spare, so it keeps its ranks; add one "
        "with: deadpool agent --spare --join HOST:PORT SCRIPT",
    ),
    EventType(
        name="lease_taken",
        meaning="A machine that serves several jobs serves this one from here on, until its node ends.",
        action="Nothing; its agents in other jobs leave these.",
    ),
    EventType(
        name="lease_released",
        meaning="A machine was about to serve this job, and is free for all again.",
        action="Nothing.",
        fields={"reason": "why it was not needed"},
    ),
    EventType(
        name="lease_refused",
        meaning="A machine of a pool serves another job: its node leaves this one.",
        action="Nothing: the next spare takes its rehearsals. Add machines to the pool if `no_spare` follows.",
        fields={"reason": "which job has it", "needed": "true: this job was about to give it ranks"},
        console="node {node} leaves: {reason}",
    ),
    EventType(
        name="parked_work_started",
        meaning="A spare is parked and has begun to run the command of `--while-parked`.",
        action="Nothing; its output is in `NODE.parked.log` beside the trainers' logs.",
        fields={"start": "how often the command was started, this time included"},
    ),
    EventType(
        name="parked_work_stopped",
        meaning="The spare is needed: its command and all children of it are gone.",
        action="Nothing. Where `killed` is not 0, let the command end on SIGTERM if it has something to save.",
        fields={
            "reason": "why the spare was needed",
            "took_s": "seconds from the request to the end of the last process",
            "killed": "processes that had to be ended by SIGKILL",
        },
    ),
    EventType(
        name="parked_work_ended",
        meaning="The command of `--while-parked` ended by itself.",
        action="Nothing after code 0: it is not started again. Otherwise read its log.",
        fields={
            "code": "its exit code",
            "again_in_s": "seconds until it is started again; empty: it has done its work",
        },
    ),
    EventType(
        name="trainer_lost",
        meaning="A trainer process that held no rank has ended.",
        action="Nothing: its agent starts another. Read the trainer's log if this happens again and again.",
        fields={"node": "where it ran", "trainer": "its name", "reason": "how it ended"},
        console="trainer {trainer} without a rank on node {node} ended: {reason}",
    ),
)


DRAIN_EVENTS = (
    EventType(
        name="drain",
        meaning="A node is to leave; a spare rehearses its ranks while training goes on.",
        action="Wait for `left`.",
        fields={
            "node": "the node that leaves",
            "ranks": "the ranks that it hands over",
            "successor": "the spare that takes them",
            "reason": "who or what asked for it",
        },
        console="node {node} is being drained ({reason}): node {successor} gets ready for ranks {ranks}",
    ),
    EventType(
        name="handover",
        meaning="Every rank has stopped at one version; the ranks of the draining node move now.",
        action="Nothing; no step is computed again.",
        fields={
            "node": "the node that leaves",
            "step": "the version at which all ranks stopped",
            "ranks": "the ranks that move",
            "reason": "who or what asked for the drain",
        },
        console="every rank has stopped at version {step}: ranks {ranks} of node {node} move, no step is lost",
    ),
    EventType(
        name="drain_failed",
        meaning="The node stays in the job: something else happened before its ranks could move.",
        action="Drain it again when the job runs.",
        fields={"node": "the node that stays", "reason": "what happened"},
        console="node {node} is NOT drained and stays: {reason}",
    ),
    EventType(
        name="drain_refused",
        meaning="An agent asked to leave (SIGTERM), and no spare can take its ranks.",
        action="Start a spare and drain the node again; if its machine ends now, that is a node loss.",
        fields={"node": "the node that asked", "reason": "why it cannot leave now"},
        console="node {node} cannot be drained: {reason}",
    ),
    EventType(
        name="left",
        meaning="A drained node, or a spare, has left the job.",
        action="The machine can be switched off.",
        fields={"node": "its name", "reason": "who or what asked for it"},
        console="node {node} has left: {reason}",
    ),
    EventType(
        name="straggler",
        meaning="A node has worked longer at its steps than the others for 20 heartbeats in a row; all ranks wait for "
        "it.",
        action="Replace it (`deadpool node replace --straggler`), unless its ranks have more to do by design.",
        fields={
            "node": "the slow node",
            "rank": "its busiest rank",
            "reason": "the figures below in words",
            "factor": "how many times as long as the others; empty: the others hardly work at all",
            "own_s": "how long this rank works at a step, without waiting for others",
            "usual_s": "the median of that over the other nodes",
            "step_s": "how long a step takes",
        },
        console="SLOW: node {node} {reason}; replace it with: deadpool node replace --straggler",
    ),
    EventType(
        name="straggler_recovered",
        meaning="A node that was slow works as fast as the others again.",
        action="Nothing.",
        fields={"node": "its name"},
        console="node {node} is as fast as the others again",
    ),
)
