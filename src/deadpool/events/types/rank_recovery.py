"""Events of a recovery as each trainer process goes through it."""

from __future__ import annotations

from deadpool.events.types.event_type import EventType

EVENTS = (
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
