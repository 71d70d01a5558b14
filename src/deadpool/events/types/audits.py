"""Events of audits: a recovery is played on purpose, and what is computed again is compared with what was."""

from __future__ import annotations

from deadpool.events.types.event_type import EventType

_INSIDE = {"inside": "whether ranks were cut off inside of the step after that version, and went back to it"}

EVENTS = (
    EventType(
        name="audit_ordered",
        meaning="A recovery will be played: after this step one rank ends on purpose, another process takes it, and "
        "all ranks compute the last steps again.",
        action="Nothing; `--no-rehearse-recovery` leaves it out.",
        fields={"rank": "the rank that ends", "step": "the version whose digests are compared", **_INSIDE},
    ),
    EventType(
        name="audit_ends_rank",
        meaning="Every rank has told its digests, and this one ends on purpose. The fault that follows is part of the "
        "audit.",
        action="Nothing.",
        fields={"rank": "the rank that ends", "step": "the version whose digests are compared"},
    ),
    EventType(
        name="audit_passed",
        meaning="After the recovery that was played, every rank had bit for bit the state that it had had before. What "
        "may differ in an exact script, such as floats in objects that may be times, is named if it did.",
        action="Nothing.",
        fields={
            "rank": "the rank that was replaced",
            "step": "the version",
            "ranks": "how many ranks were compared",
            "found": "what they have, in words",
            **_INSIDE,
        },
        console="audit passed: a recovery of rank {rank} was played, and all {ranks} ranks have {found}",
    ),
    EventType(
        name="audit_differs",
        meaning="After the recovery that was played, the state of a rank is another one than before: the script is not "
        "exact, and goes on as after a real fault.",
        action="Look the rule up in docs/exactness.md, mend the script and begin again; `--on-inexact stop` ends such "
        "a job.",
        fields={
            "rank": "the first rank that differs",
            "step": "the version",
            "part": "what differs first there",
            "rule": "the rule of docs/exactness.md that this points to",
            "ranks": "all ranks that differ",
            "replaced": "the rank that was replaced",
            **_INSIDE,
        },
        console="NOT EXACT: after a recovery that was played, {part} of rank {rank} differs at version {step} ({rule}, "
        "see docs/exactness.md)",
    ),
    EventType(
        name="audit_given_up",
        meaning="No recovery could be played.",
        action="Ask for it with `deadpool job audit` when the job runs steadily.",
        fields={"reason": "why"},
        console="no recovery was played: {reason}",
    ),
)
