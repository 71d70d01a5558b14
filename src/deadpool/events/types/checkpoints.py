"""Events of durable checkpoints."""

from __future__ import annotations

from deadpool.events.types.event_type import EventType

_NAME = "the folder of the checkpoint in `--durable`"

EVENTS = (
    EventType(
        name="checkpoint_begun",
        meaning="A durable checkpoint of a committed version is being written in the background.",
        action="Nothing.",
        fields={"step": "the version", "name": _NAME},
    ),
    EventType(
        name="checkpoint_written",
        meaning="A durable checkpoint is complete: a job can begin from it after everything else is lost.",
        action="Nothing.",
        fields={
            "step": "the version",
            "name": _NAME,
            "bytes": "its size",
            "seconds": "how long it took",
            "failures": "attempts that failed since the one before",
        },
        console="durable checkpoint after {step} steps is complete: {name}",
    ),
    EventType(
        name="checkpoint_failed",
        meaning="A durable checkpoint could not be written, and is tried again later. Training goes on, and the "
        "checkpoint before it stays. This is told once until one is written, and for each one that was asked for; "
        "`deadpool status` counts the failures.",
        action="Look at the reason: a full disk, missing rights, an object store that does not answer.",
        fields={"step": "the version", "name": _NAME, "reason": "the error, with the node"},
        console="NO CHECKPOINT after {step} steps: {reason}; training goes on, it is tried again",
    ),
    EventType(
        name="checkpoint_late",
        meaning="The write of a durable checkpoint takes long: its store may hang. Training goes on.",
        action="Look at the store from the nodes named. Give `--durable-timeout-s` more time if it is only slow.",
        fields={
            "step": "the version",
            "name": _NAME,
            "nodes": "nodes that are not done",
            "seconds": "since it began",
        },
        console="the durable checkpoint after {step} steps takes long: {nodes} still write after {seconds} s",
    ),
    EventType(
        name="checkpoint_interval",
        meaning="A durable checkpoint took longer to write than `--durable-every` asks for one. The next is begun when "
        "it is done, so checkpoints are further apart than that.",
        action="Give a longer `--durable-every`, more `--durable-bandwidth`, or a faster store.",
        fields={"seconds": "what it took", "every_s": "the interval that was asked for"},
        console="CHECKPOINTS ARE LATE: one took {seconds} s, and --durable-every asks for one every {every_s:g} s",
    ),
    EventType(
        name="checkpoint_skipped",
        meaning="A complete durable checkpoint is damaged: files are missing or cut short, or bytes have changed. The "
        "job goes back to an older one.",
        action="Find out what deletes files in the store. `deadpool durable verify` says what else is damaged. Delete "
        "the checkpoint's folder, so that it is not counted among those that are kept.",
        fields={"step": "its version", "name": _NAME, "reason": "which file, and what is wrong with it"},
        console="SKIPPED: the durable checkpoint after {step} steps cannot be read ({name}: {reason})",
    ),
    EventType(
        name="checkpoint_found",
        meaning="There is a complete durable checkpoint that the job begins from, or may fall back to.",
        action="Nothing.",
        fields={"step": "its version", "name": _NAME},
        console="durable checkpoint after {step} steps found: {name}",
    ),
)
