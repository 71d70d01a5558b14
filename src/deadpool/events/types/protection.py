"""Events of protection that follows the health of nodes."""

from __future__ import annotations

from deadpool.events.types.event_type import EventType

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
