"""Events of protection, and of jobs that change their size.

Events of protection that follows the health of nodes.

Events of jobs that go on with fewer nodes than they began with.
"""

from __future__ import annotations

from deadpool.events.event import EventType

EVENTS = (
    EventType(
        name="health",
        meaning="A node shows other signs of illness than before, or none any more.",
        action="Look at the node. With --protect-at-most its ranks are guarded, with --evict-ill it is drained.",
        fields={
            "node": "the node",
            "grade": "0 sound, 1 doubtful, 2 likely to fail, 3 hardware has failed",
            "reason": "the signs in words",
        },
        console="node {node} {reason}",
    ),
    EventType(
        name="health_unseen",
        meaning="An agent cannot look at its node's health: an error of ours, or of the driver's package.",
        action="Report it, with its reason. The node counts as sound as far as this source goes.",
        fields={"node": "the node", "source": "files or GPUs", "reason": "the error"},
        console="node {node}: its {source} are not looked at for signs of illness: {reason}",
    ),
    EventType(
        name="protection",
        meaning="The job has changed its own protection, within the bounds of --protect-at-most and --evict-ill.",
        action="Read why. Changes are limited to 6 within 6 times --protect-dwell-s, and each stays for that time.",
        fields={
            "node": "the node that it is about, if it is about one",
            "change": "guarded, unguarded, evicted, the new interval or scheme, or the signs that most nodes show",
            "raises": "whether there is more protection than before",
            "reason": "one sentence with the cause and the change",
        },
        console="protection: {reason}",
    ),
    EventType(
        name="eviction",
        meaning="A node that looks ill is drained before it fails (--evict-ill).",
        action="Wait for `left`, then have the node examined: it is quarantined if it comes back.",
        fields={"node": "the node", "reason": "its signs, and what follows"},
        console="node {node} is evicted: {reason}",
    ),
    EventType(
        name="scheme",
        meaning="Snapshots are to be protected in another way. It counts from the next plan on.",
        action="Nothing; `protected` says when every version is complete in the new way.",
        fields={"scheme": "copies=N or rs(K,M)", "reason": "who wants it; if it is the job, `protection` says why"},
        console="snapshots are protected by {scheme} from the next plan on: {reason}",
    ),
    EventType(
        name="reconfiguration",
        meaning="Every rank has stopped at one version, so that copies can be placed anew. No rank moves.",
        action="Nothing; no step is computed again.",
        fields={
            "step": "the version at which all ranks stopped",
            "reason": "which ranks get a further holder, or how snapshots are protected now",
        },
        console="every rank has stopped at version {step}: {reason}, no step is lost",
    ),
    EventType(
        name="reconfiguration_failed",
        meaning="Copies could not be placed anew for now; protection is what it was.",
        action="Nothing; it is tried again, or takes effect with the next recovery.",
        fields={"reason": "what happened"},
        console="copies are NOT placed anew: {reason}",
    ),
)


_FIELDS = {
    "step": "the step from which on it is so",
    "nodes": "nodes whose processes train",
    "of": "nodes that the job was started for",
    "carried": "ranks without a process -> the ranks that do their share of every step too",
    "inexact_from": "from this step on the job is not bit-identical to an undisturbed one",
}

SIZE_EVENTS = (
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
