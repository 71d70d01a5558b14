"""Events of a recovery.

Events of a recovery, from the fault to Go, as the coordinator decides them.

Events of a recovery as each trainer process goes through it.
"""

from __future__ import annotations

from deadpool.events.event import EventType

EVENTS = (
    EventType(
        name="fault",
        meaning="A node or a trainer is lost, the job hangs, or replicas differ; a recovery begins.",
        action="Nothing unless it recurs; `deadpool show story --cause` shows what followed.",
        fields={
            "node": "the lost node, or the node of the lost trainer",
            "rank": "the rank of the lost trainer, where only a trainer was lost; or the odd one among replicas",
            "ranks": "all ranks that are lost; empty: none is lost, or none yet: the job hangs, or replicas differ",
            "kind": "what is lost, or by what: `node`, `trainer`, `script`, `device`, `unread` or `damaged` (a copy), "
            "`hang`, `audit` (a rank ends on purpose, or a step is computed twice), `takeover`, `corruption` (no "
            "process has ended, and steps are computed again)",
            "reason": "how it was seen",
            "during": "the phase that the job was in",
            "since_s": "how long before it was seen it had happened; 0 unless a coordinator took over meanwhile",
        },
        console="FAULT: {reason} (lost ranks: {ranks})",
    ),
    EventType(
        name="hung",
        meaning="A rank did not come to rest after the abort; a fresh process takes its place.",
        action="Read the stack in the trainer's log; look at the device if it is always the same node.",
        fields={"node": "its node", "rank": "the rank", "found": "what was seen of it"},
        console="HUNG: rank {rank} on node {node} {found}; a fresh process takes its place",
    ),
    EventType(
        name="stuck_at_end",
        meaning="A rank whose loop was over stood still with Python's lock held, so that nothing of its script could "
        "run any more. Its process was ended, and the job ends.",
        action="Nothing if its script was done: with code 0 it had destroyed its process groups. Whatever it was to do "
        "after that in this rank was not done. Otherwise read the end of its log.",
        fields={
            "rank": "the rank",
            "trainer": "its process",
            "seconds": "for how long it did not answer",
            "code": "what counts as its exit code; none: how it was ended",
        },
        console="rank {rank} on node {node} hung at the end of its script for {seconds:.0f} s: its process is ended",
    ),
    EventType(
        name="no_rank_hung",
        meaning="No step was completed in time, but every rank came to rest: a collective was stuck.",
        action="Look at the network if this happens again.",
        fields={"reason": "the same in words"},
        console="no rank hangs: {reason}",
    ),
    EventType(
        name="cut_off",
        meaning="The job stands still because nodes do not reach each other, though the coordinator hears them. Those "
        "that would have to be given up are more than there are spares, or the majority would go with them.",
        action="Mend the network between them, or start a spare: `deadpool agent --join`.",
        fields={"reason": "which nodes"},
        console="CUT OFF: {reason}",
    ),
    EventType(
        name="slow_start",
        meaning="No step has been completed for long, before the first step of this job; no hang is assumed there.",
        action="Look at the ranks that are behind if the script should be training by now.",
        fields={"ranks": "the ranks that are furthest behind", "seconds": "how long no step was completed"},
        console="no step was completed for {seconds} s; ranks {ranks} are behind. Before the first step this is not "
        "taken for a hang: look at these ranks' logs",
    ),
    EventType(
        name="paused",
        meaning="The script has announced a pause, during which no hang is assumed.",
        action="Nothing.",
        fields={"node": "its node", "rank": "the rank", "reason": "what the script said"},
        console="rank {rank} pauses: {reason}",
    ),
    EventType(
        name="fence",
        meaning="The generation ends: all nodes stop their trainers and freeze what they hold.",
        action="Nothing.",
    ),
    EventType(
        name="fenced",
        meaning="Every node is at rest and has reported what it holds.",
        action="Nothing.",
    ),
    EventType(
        name="planned",
        meaning="The plan is made: which node holds which ranks, and at which step training resumes.",
        action="Nothing.",
        fields={
            "step": "the first step that is computed next",
            "resume": "the version that training resumes from; empty: the script starts at its first line",
            "seats": "node by position",
            "lost_steps": "completed steps that are computed again",
            "checkpoint": "the durable checkpoint that every rank's state comes from; empty: from memory",
        },
        console="plan: nodes {seats}, training resumes at step {step}",
    ),
    EventType(
        name="no_plan",
        meaning="Some rank's state is nowhere any more; the job ends.",
        action="Resume from the last checkpoint.",
        fields={"reason": "which copies are lost", "ranks": "the ranks without a copy"},
        console="NO PLAN: {reason}",
    ),
    EventType(
        name="awaiting_spare",
        meaning="A lost node cannot be replaced, because no spare is there; the job is paused.",
        action="Start one (`deadpool agent --spare --join HOST:PORT SCRIPT`) before the time is over; then the job "
        "ends.",
        fields={"reason": "which position is empty", "deadline_s": "how long it waits (`--spare-wait-s`)"},
        console="WAITING up to {deadline_s} s: {reason}; add one with: deadpool agent --spare --join HOST:PORT SCRIPT",
    ),
    EventType(
        name="awaiting_return",
        meaning="Silent nodes may still run, or hold the only copies; the job is paused until they come back.",
        action="Bring back the nodes that `reason` names, or their network.",
        fields={"reason": "which nodes, and what they hold", "deadline_s": "how long it waits"},
        console="WAITING up to {deadline_s} s: {reason}",
    ),
    EventType(
        name="no_majority",
        meaning="Most of the nodes that ran do not answer, so this coordinator must not act alone.",
        action="Bring back nodes, or their network.",
        fields={"reason": "the same in words", "nodes": "the nodes that answer"},
        console="NO MAJORITY: {reason}; only {nodes} do",
    ),
    EventType(
        name="prepared",
        meaning="Every rank has built its model and loaded its state.",
        action="Nothing.",
    ),
    EventType(
        name="renegotiate",
        meaning="Some framework (e.g. pipelining) had agreed on different things on different ranks; all forget it.",
        action="Nothing.",
    ),
    EventType(
        name="go",
        meaning="All process groups are rebuilt; training runs.",
        action="Nothing.",
        console="go: training runs in generation {generation}",
    ),
    EventType(
        name="no_progress",
        meaning="Several recoveries in a row have not led to one new completed version; the job ends.",
        action="Fix what `faults` names, and resume from the salvaged copies or the last checkpoint.",
        fields={
            "step": "the step that the job did not get beyond",
            "reason": "the report that the job ends with",
            "faults": "the faults since the last completed version, as CAUSE: WHAT",
            "ranks": "the ranks that were lost in them",
            "nodes": "the nodes that were involved",
        },
        console="NO PROGRESS at step {step}: {faults}",
    ),
)


RANK_EVENTS = (
    EventType(
        name="aborted",
        meaning="A rank was told of a fault elsewhere, and has aborted its process groups.",
        action="Nothing.",
        fields={"sockets": "how many connections were shut"},
    ),
    EventType(
        name="torn_down",
        meaning="The NCCL communicators of a rank are destroyed after an abort.",
        action="Nothing.",
        fields={"seconds": "how long that took"},
    ),
    EventType(
        name="unwound",
        meaning="A rank's main thread is back at its step boundary.",
        action="Nothing.",
    ),
    EventType(
        name="trainer_restarts",
        meaning="A survivor's process ends after unwinding, and a fresh one takes its rank from the node's memory.",
        action="Nothing; `reason` says why the process could not go on.",
        fields={"reason": "why a fresh process is needed"},
    ),
    EventType(
        name="built",
        meaning="A newcomer has run the script up to its training loop as its new rank.",
        action="Nothing.",
    ),
    EventType(
        name="restored",
        meaning="A rank has the state that training resumes from.",
        action="Nothing.",
        fields={
            "step": "the version",
            "survived": "whether the process held the rank before, and keeps it",
            "kept": "true: the process stood at that version already and went on with its objects and their memory",
            "loaded": "whether the bytes came from a sealed copy; false: this node had none, so those in memory stayed",
            "early_bytes": "how many bytes were loaded while the rest was still arriving",
        },
    ),
    EventType(
        name="damaged_copy_found",
        meaning="A rank was to load a copy that does not match its checksum; another source is planned.",
        action="Check the memory of the node if this happens again.",
        fields={"step": "the version", "region": "the part that does not match"},
    ),
    EventType(
        name="rebuilt",
        meaning="A rank has rebuilt all its process groups.",
        action="Nothing.",
    ),
    EventType(
        name="rebuild_failed",
        meaning="A rank could not rebuild its process groups; it waits for the fault that explains it.",
        action="Look at the network if no fault follows.",
        fields={"reason": "the error"},
    ),
    EventType(
        name="resumed",
        meaning="A rank has completed its first step after a recovery.",
        action="Nothing.",
        fields={"step": "that step"},
    ),
    EventType(
        name="groups_forgotten",
        meaning="Process groups that were made after the version that training resumes from are discarded.",
        action="Make groups before the training loop, or in every step that needs them.",
        fields={"names": "the groups"},
    ),
    EventType(
        name="peer_lost",
        meaning="A connection to a peer broke in a step, and no fault was found that explains it; the step is computed "
        "again by a fresh process.",
        action="Look at the network between the nodes.",
        fields={"step": "the step", "reason": "the same in words"},
        console="PEER LOST by rank {rank} in step {step}: {reason}",
    ),
    EventType(
        name="device_lost",
        meaning="The device of a rank reports an error after which nothing can run on it; a fresh process takes the "
        "rank.",
        action="Check the device (`nvidia-smi`, kernel log); a node with several such faults is quarantined.",
        fields={"reason": "the error of the device"},
        console="DEVICE LOST by rank {rank}: {reason}",
    ),
)
