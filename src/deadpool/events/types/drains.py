"""Events of nodes that leave on purpose, and of slow nodes."""

from __future__ import annotations

from deadpool.events.types.event_type import EventType

EVENTS = (
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
