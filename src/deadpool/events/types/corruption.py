"""Events of what was computed or kept wrongly: replicas differ, or a rank differs from itself."""

from __future__ import annotations

from deadpool.events.event import EventType

_DIGESTS = "the checksum of its replicated state, as each of these ranks has it"

EVENTS = (
    EventType(
        name="corruption_suspected",
        meaning="Replicas hold different state after a step, and it is not clear which of them is right. All ranks go "
        "back to the last version that is committed, and compute the steps after it again.",
        action="Wait: who says something else the second time is named by `corruption_found`.",
        fields={
            "step": "the version in which they differ",
            "ranks": "the ranks that hold the same state otherwise",
            "nodes": "the node of each of them",
            "digests": _DIGESTS,
            "reason": "the same in words",
        },
        console="CORRUPTION? {reason}; the steps since the last committed version are computed again",
    ),
    EventType(
        name="corruption_found",
        meaning="A node has computed, kept or copied something wrong: all its replicas say so, or it says something "
        "else when the step is computed again, or two other nodes compute something else each time. Nothing that "
        "follows from it is used, as far back as the step is compared.",
        action="Have the node's GPU and memory tested. The second time a spare takes its ranks, the first time already "
        "where more than one spare is there. With found=repeated it errs all the time and is out: the reason says "
        "since which step, and a checkpoint from before it is right.",
        fields={
            "node": "the node that is at fault",
            "rank": "its rank; the first one, where it is several",
            "step": "the version in which it was found",
            "ranks": "its ranks that differ",
            "found": "outvoted, changed, or repeated",
            "digests": f"{_DIGESTS}; where it has changed, the first time",
            "others": "what its replicas say; where it has changed, what it says the second time",
            "errors": "how many errors of this node were found by now",
            "reason": "the same in words",
        },
        console="CORRUPTION on node {node}: {reason}",
    ),
    EventType(
        name="corruption_unexplained",
        meaning="Replicas have differed, and agree after the steps were computed again. No single node can be named.",
        action="Nothing: all go on from the same state on all replicas. Test the nodes if it happens again.",
        fields={"step": "the version in which they differed", "reason": "why nobody can be named"},
        console="the difference at step {step} is gone: {reason}",
    ),
    EventType(
        name="corruption_unsolved",
        meaning="Replicas differ, and computing again does not help. Nobody is looked for any more in this job: a "
        "version that differs does not count (`replicas_differ`).",
        action="Test the nodes, or find out whether the script does the same on all replicas; then start again.",
        fields={
            "step": "the version in which they differ",
            "ranks": "the ranks that hold the same state otherwise",
            "nodes": "the node of each of them",
            "digests": _DIGESTS,
            "stops": "whether the job ends by it (--on-corruption)",
            "reason": "what was tried, and what came out",
        },
        console="REPLICAS DIFFER at step {step}: {reason}",
    ),
    EventType(
        name="quarantine_lifted",
        meaning="What a node was quarantined for is not its fault: another node, in its place, does the same.",
        action="Nothing; the node is a spare like any other.",
        fields={"node": "the node"},
        console="node {node} is no longer quarantined",
    ),
)

_STEP = {"step": "the version in which the audited step ends"}

STEP_AUDIT_EVENTS = (
    EventType(
        name="step_audit_ordered",
        meaning="One step will be computed twice, and every rank compares what it computed (`--audit-every`).",
        action="Nothing.",
        fields=_STEP,
    ),
    EventType(
        name="step_audit_passed",
        meaning="Two computations of the step agree in every rank: in its gradients before they were reduced, in what "
        "its optimizers took, in what it logged, and in its state before and after.",
        action="Nothing. If it was computed more than twice, `corruption_found` or `corruption_unexplained` follows.",
        fields={
            **_STEP,
            "ranks": "how many ranks were compared",
            "computed": "how often the step was computed: 2, or more where some differed",
        },
        console="audited up to step {step}: all {ranks} ranks have computed it alike",
    ),
    EventType(
        name="step_audit_judged",
        meaning="Different nodes have computed the same step for these ranks, and agree. The last one keeps the ranks.",
        action="Nothing. A node that does not agree is named by `corruption_found`.",
        fields={**_STEP, "ranks": "the ranks whose turn it was", "nodes": "the nodes that agree"},
        console="nodes {nodes} compute the same for ranks {ranks} in step {step}",
    ),
    EventType(
        name="corruption_undecided",
        meaning="Two nodes compute something else for the same ranks, each of them the same every time, and there is "
        "no third one that could tell which of them is right. Nobody is named.",
        action="Start another spare, then: `deadpool job audit --step --rank R`. Test both nodes.",
        fields={**_STEP, "ranks": "the ranks", "nodes": "the nodes", "reason": "the same in words"},
        console="CORRUPTION on one of the nodes {nodes}: {reason}",
    ),
    EventType(
        name="judging_ended",
        meaning="No spare computes a step for another node any more in this job, unless a person asks for it. Audits "
        "go on without.",
        action="What the reason says.",
        fields={**_STEP, "reason": "what was found"},
        console="spares compare no more: {reason}",
    ),
    EventType(
        name="step_audit_differs",
        meaning="Some rank has computed something else the second time. It is not known yet which time was wrong: the "
        "step is computed once more.",
        action="Wait for `corruption_found`, which names the node.",
        fields={
            **_STEP,
            "ranks": "the ranks that differ first, in the order of computation; others have got their numbers",
            "nodes": "the node of each of them",
            "stage": "in which they differ: before, gradients, reduced or after",
            "part": "the first tensor or value that differs",
        },
        console="CORRUPTION? ranks {ranks} have computed step {step} otherwise the second time: {part}",
    ),
    EventType(
        name="step_audit_put_off",
        meaning="The audit of this step comes to nothing, and another one follows.",
        action="Nothing. If it happens each time, look at the reason.",
        fields={**_STEP, "reason": "why nothing can be compared"},
    ),
    EventType(
        name="step_audits_ended",
        meaning="No step is audited any more in this job: what differs is not known to be the error of a device.",
        action="Correct the script, or test the nodes; then start again.",
        fields={**_STEP, "reason": "what was found"},
        console="NO STEP IS AUDITED any more: {reason}",
    ),
)
