"""Events of jobs that go on with fewer nodes than they began with."""

from __future__ import annotations

from deadpool.events.types.event_type import EventType

_FIELDS = {
    "step": "the step from which on it is so",
    "nodes": "nodes whose processes train",
    "of": "nodes that the job was started for",
    "carried": "ranks without a process -> the ranks that do their share of every step too",
    "inexact_from": "from this step on the job is not bit-identical to an undisturbed one",
}

EVENTS = (
    EventType(
        name="shrunk",
        meaning="A node is lost, no spare is left, and the job was started with `--without-spare shrink`: other ranks "
        "do the work of its ranks, with the same data. Steps take longer. From the first such step on losses differ "
        "from those of an undisturbed job by rounding.",
        action="Start a spare when there is one: `deadpool agent --spare --join HOST:PORT SCRIPT`. The job grows by "
        "itself.",
        fields=_FIELDS,
        console="SHRUNK to {nodes} of {of} nodes at step {step}: ranks {carried} are carried; not bit-identical from "
        "step {inexact_from} on",
    ),
    EventType(
        name="replicas_at_one_node",
        meaning="A node that carries ranks is the home of all replicas of some tensors, and this version was captured "
        "when they were on several nodes: their bytes were not sent, so the version does not count. Those of the next "
        "one are sent.",
        action="Nothing.",
        fields={"step": "the version", "ranks": "ranks whose bytes are on one node only"},
    ),
    EventType(
        name="grown",
        meaning="Spares have taken ranks that other ranks carried. With as many nodes as at the start, the sums of a "
        "step are again added up as at the start.",
        action="Nothing.",
        fields=_FIELDS,
        console="grown to {nodes} of {of} nodes at step {step}; not bit-identical since step {inexact_from}",
    ),
    EventType(
        name="growth_failed",
        meaning="A spare was to take ranks that another node carries, and something else happened first.",
        action="Nothing; it is tried again.",
        fields={"node": "the node that carries them", "reason": "what happened"},
        console="ranks that node {node} carries did not move to a spare: {reason}",
    ),
)
