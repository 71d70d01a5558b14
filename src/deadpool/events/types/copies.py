"""Events of snapshots, of their copies, and of disks.

Events of snapshots, and of the copies that other nodes hold of them.

Events of disks that take nothing any more: what is to be written waits in memory, and training goes on.
"""

from __future__ import annotations

from deadpool.events.event import EventType

EVENTS = (
    EventType(
        name="protected",
        meaning="Every rank's snapshot of one version lies on its own node and at all its holders: a loss costs no "
        "more than the steps since then.",
        action="Nothing.",
        fields={"step": "that version"},
        console="protected again at version {step}",
    ),
    EventType(
        name="capture_missed",
        meaning="A rank has no snapshot of a version that was to be captured, so that version is never complete.",
        action="Nothing if it is rare: slots are added, or the coordinator widens the interval and says what may be "
        "done (`interval_not_kept`).",
        fields={"rank": "the rank", "step": "the version", "reason": "why it was not captured"},
    ),
    EventType(
        name="capture_interval",
        meaning="From some version on, snapshots are taken every so many steps.",
        action="Nothing: see `interval_not_kept` for what may be done about a wide interval.",
        fields={
            "from": "the first version that this holds for",
            "every": "steps from one snapshot to the next",
            "reason": "why it was changed",
            "widened_by": "what widened it: `cost` (steps beside a copy take longer), `waits` (the optimizer waits for "
            "copies), `bandwidth` (versions are not sent in time), `slots`, `memory` (for further slots), `missed` "
            "(nothing was committed), `few failures` (are to be expected); empty where it was narrowed again",
        },
    ),
    EventType(
        name="interval_not_kept",
        meaning="Snapshots are further apart than was asked for, for a cause that had not shown before: it is said "
        "once per cause. A loss repeats the steps in between.",
        action="What the remedy says, if more steps may be lost than you can accept.",
        fields={
            "every": "steps from one snapshot to the next by now",
            "asked": "steps from one snapshot to the next that were asked for",
            "widened_by": "the cause, as in capture_interval",
            "reason": "what was measured",
            "remedy": "what may be done about it",
        },
        console="one snapshot every {every} steps by now, where every {asked} was asked for: {reason}; to change that: "
        "{remedy}",
    ),
    EventType(
        name="slots_allocated",
        meaning="A rank's state needed larger slots for its snapshots, and has them now.",
        action="Nothing; check that the node has that much memory to spare.",
        fields={
            "bytes": "size of one slot",
            "device_bytes": "memory on the device that captures need",
            "waited_s": "how long the rank waited for them",
        },
    ),
    EventType(
        name="set_aside",
        meaning="A snapshot could not be copied before the optimizer: the rest was cloned on the device, more than "
        "ever before in this process, and is copied beside the next steps.",
        action="Nothing; lower `--set-aside-gb` if the script lacks that device memory.",
        fields={
            "number": "the version",
            "bytes": "how much was cloned",
            "device_bytes": "memory on the device that captures need",
        },
    ),
    EventType(
        name="arena_full",
        meaning="A node could not allocate host memory for snapshots.",
        action="Give the node more memory, or lower `--holders`, or `--slots` where it was given.",
        fields={"reason": "the error, with the size"},
    ),
    EventType(
        name="pinning_failed",
        meaning="Slot memory could not be registered with CUDA; captures are slow.",
        action="Raise the limit of locked memory (`ulimit -l`) for the job.",
        fields={"reason": "the error"},
    ),
    EventType(
        name="push_failed",
        meaning="A snapshot did not reach one of its holders; it is sent again a few times, then the version counts as "
        "missed.",
        action="Look at the network between the two nodes if it is frequent.",
        fields={
            "rank": "the rank",
            "step": "the version",
            "holder": "the node that it was sent to",
            "refusal": "what the holder says: damaged, no free slot, ...; empty: it gave no answer",
            "reason": "the error",
        },
    ),
    EventType(
        name="copies_by_nixl",
        meaning="A node's NIXL process works: copies are read through it, to and from nodes where one works too.",
        action="Nothing. Where `devices` is empty it reads over UCX's TCP or shared memory, for which "
        "`--transport tcp` is the better way.",
        fields={"devices": "the RDMA devices of the node"},
    ),
    EventType(
        name="copies_by_tcp",
        meaning="A node that sends and reads copies by NIXL does so by TCP for now: its own NIXL process has ended or "
        "is silent, which is started again, or another node's memory could not be read. Nothing is lost; it is said "
        "once per reason.",
        action="Look at the RDMA device and its network if copies take longer than before.",
        fields={"reason": "what went wrong"},
    ),
    EventType(
        name="source_failed",
        meaning="A newcomer could not get a copy from one node; it asks the next one.",
        action="Look at that node if it is frequent.",
        fields={
            "rank": "the rank that needs the copy",
            "step": "the version",
            "source": "the node that was asked",
            "reason": "the error",
        },
    ),
    EventType(
        name="copy_unreadable",
        meaning="A newcomer got a snapshot from none of its sources, several times in a row, although they have it and "
        "none was damaged. The next plan does without it, if that costs no committed version.",
        action="Look at the events source_failed, and at the network between these nodes.",
        fields={
            "node": "the newcomer",
            "rank": "the rank whose snapshot it is",
            "step": "the version",
            "reason": "why the last attempt failed",
        },
        console="UNREADABLE: node {node} does not get the snapshot of rank {rank} at version {step}: {reason}; "
        "the next plan does without it if it can",
    ),
    EventType(
        name="coder_chosen",
        meaning="A node has begun to make parities, and says what computes them.",
        action="Nothing.",
        fields={"coder": "the library"},
    ),
    EventType(
        name="coder_slow",
        meaning="A node makes parities without ISA-L. The bytes are the same; with two parities or more they "
        "take about five times the CPU time.",
        action="Install libisal2 (Debian, Ubuntu) or pyeclib on every node.",
        fields={"coder": "what computes instead"},
        console="SLOW: node {node} makes parities with {coder}, as ISA-L is not there; install libisal2 or pyeclib",
    ),
    EventType(
        name="parity_begun_anew",
        meaning="A snapshot has grown and does not fit into the parity that a node was making, or a parity was damaged "
        "and dropped: its group sends again.",
        action="Nothing.",
        fields={
            "node": "the node that keeps the parity",
            "rank": "its rank in the group",
            "step": "the version",
        },
    ),
    EventType(
        name="copy_damaged",
        meaning="A copy does not match its checksum; it is dropped and made anew.",
        action="Check the memory of the node that held it if this happens again.",
        fields={
            "node": "the node that holds it",
            "rank": "the rank that it is of",
            "step": "the version",
            "found_by": "the node that read it",
            "parity": "whether it is the parity that this node keeps for the group of the rank",
        },
        console="DAMAGED: the copy of rank {rank} at version {step} on node {node} does not match its checksum, and is "
        "dropped",
    ),
    EventType(
        name="copies_in_own_rack",
        meaning="Some nodes' copies lie in the same rack as the nodes themselves, because no other rack has room.",
        action="Add nodes in other racks, or accept that the loss of a rack ends the job.",
        fields={"positions": "the positions", "nodes": "the nodes there"},
        console="copies of nodes {nodes} lie in the nodes' own rack: no other rack has room for them",
    ),
    EventType(
        name="replicas_differ",
        meaning="State that was declared as replicated is not the same on any other node, so this version does not "
        "count.",
        action="Correct `protect(replicated=...)`, or find out why replicas have come apart.",
        fields={"step": "the version", "ranks": "the ranks whose state has no equal"},
        console="REPLICAS DIFFER: at version {step} the replicated state of ranks {ranks} is on no other node; correct "
        "protect(replicated=...)",
    ),
    EventType(
        name="bandwidth",
        meaning="How fast snapshots went to their holders, told when the job ends.",
        action="Compare it with what the network should give.",
        fields={
            "bytes_pushed": "bytes that all nodes have sent",
            "push_gbps": "GB/s of one transfer, by node",
            "summary": "the same in words",
        },
        console="copies: {summary}",
    ),
)


STORAGE_EVENTS = (
    EventType(
        name="storage_failed",
        meaning="The run folder's disk does not take what is to be written: it is full, read-only, slow or gone. The "
        "lines wait in memory, and training goes on.",
        action="Make room, or mount it again: nothing has to be restarted. `deadpool status` says how much waits.",
        fields={
            "node": "whose disk; absent: the coordinator's",
            "what_waits": "what is not written",
            "reason": "what the disk answered",
            "waiting": "lines in memory by then",
        },
        console="NOT WRITTEN: {what_waits} ({reason}); they wait in memory, and training goes on",
    ),
    EventType(
        name="storage_back",
        meaning="The disk takes everything again, and what had waited in memory is written.",
        action="Nothing.",
        fields={
            "node": "whose disk; absent: the coordinator's",
            "what_waits": "what is written again",
            "dropped": "those that are lost, because too many waited in memory",
        },
        console="{what_waits} are written again; {dropped} were dropped",
    ),
    EventType(
        name="events_dropped",
        meaning="A node had no coordinator for so long that its oldest events were dropped; a thousand are kept.",
        action="Nothing: the log lacks them, and training does not need them.",
        fields={"node": "the node", "count": "events that are in no log"},
        console="{count} events of node {node} are lost: it had no coordinator to log them",
    ),
)
