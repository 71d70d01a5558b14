"""Events of the training script, of audits, and of the journal.

Events about the training script, its steps, and its rehearsals on spares.

Events of audits: a recovery is played on purpose, and what is computed again is compared with what was.

Events of job.log and job.on_final.
"""

from __future__ import annotations

from deadpool.events.event import EventType

EVENTS = (
    EventType(
        name="not_protected_yet",
        meaning="A rank has run its script for a minute without reaching a protected loop; a fault would start it over "
        "at its first line.",
        action="Nothing if it builds a large model; else call `protect` and loop over `job.steps`.",
        fields={"rank": "the rank", "seconds": "how long it has run"},
        console="NOT PROTECTED: the script has run for {seconds} s and has not called protect(); a fault would start "
        "it over at its first line",
        rank_0_only=True,
    ),
    EventType(
        name="unprotected",
        meaning="The script has ended without ever calling `protect`; a fault would have cost the whole job.",
        action="Call `protect` in the script.",
        console="UNPROTECTED: the script ended without ever calling protect(); a fault would have cost the whole job",
        rank_0_only=True,
    ),
    EventType(
        name="inexact_script",
        meaning="The script does something that no recovery can make good; after a fault it would not be exact. Said "
        "once per rank and kind.",
        action="Do what `remedy` says; `--on-inexact stop` ends a job that is found out.",
        fields={
            "rule": "which rule of docs/exactness.md it breaks",
            "found": "what the script does",
            "remedy": "what it can do instead",
            "step": "the step in which it was found; empty: before the loop",
        },
        console="NOT EXACT: {found} {remedy}",
        once=True,
    ),
    EventType(
        name="carried_variables",
        meaning="The loop over steps hands plain values from one step to the next, such as a best loss or an epoch: in "
        "variables, attributes, containers, closures, classes, iterators, or in protected objects whose state_dict() "
        "does not tell them. If something is decided or computed by them, the script is not exact after a fault; if "
        "they are only printed, it is.",
        action="Nothing if they are only printed; else do what `remedy` says. `--on-inexact stop` ends no job by it.",
        fields={
            "names": "where they are; `f:x` is `x` in the closure or generator `f`",
            "remedy": "what the script can do instead",
        },
        console="PERHAPS NOT EXACT: steps hand {names} on to the next step in variables or objects, which a process "
        "that takes a rank does not have. {remedy} It does not matter for what is only printed.",
        once=True,
    ),
    EventType(
        name="values_not_compared",
        meaning="These variables of the script lead to more values than are compared between steps, so what steps "
        "change in the rest is not found by `carried_variables`. The audit looks at what is computed, whatever it "
        "comes from.",
        action="Nothing if they are data. A value that steps change is safe in an object with state_dict() and "
        "load_state_dict() that is passed to `protect`.",
        fields={
            "names": "the variables, with their module where it is another one",
            "most": "how many values of one variable are compared",
            "most_of_all": "how many are compared together",
        },
        once=True,
    ),
    EventType(
        name="unknown_torch",
        meaning="This version of torch has not been tested with DeadPool; survivors restart instead of going on in "
        "place.",
        action="Use a tested version of torch, or `--in-place always` at your own risk.",
        fields={
            "reason": "the version, and what follows",
            "rehearses": "false: it lacks what a rehearsal needs, so no spare rehearses",
        },
    ),
    EventType(
        name="unknown_library",
        meaning="An integration has not been tested with this version of its library. What it relies on is there, or "
        "`force=True` was given.",
        action="Compare the losses once with those of an unprotected run, or use a tested version.",
        fields={"reason": "the library, its version, and what was found"},
    ),
    EventType(
        name="mesh",
        meaning="The device mesh of all ranks that the model's parameters are on, as rank 0 has found it.",
        action="Nothing; the dashboard shows the coordinates of each rank.",
        fields={"names": "names of its dimensions", "shape": "their sizes; ranks count along the last one first"},
    ),
    EventType(
        name="step_times",
        meaning="How long a stretch of a rank's steps took.",
        action="Nothing; `deadpool show picture` draws it.",
        fields={
            "rank": "the rank",
            "step": "the first of these steps",
            "began": "when it began",
            "seconds": "duration of each step",
        },
    ),
    EventType(
        name="progress",
        meaning="How far the job is, and what its nodes report of themselves; logged every second at first, every ten "
        "heartbeats in a long job, and at the end.",
        action="Nothing; metrics, the dashboard and reports are made of it.",
        fields={
            "phase": "the coordinator's phase",
            "step": "how many steps are completed; the step of that number is computed now",
            "watermark": "the newest version of which every copy is in place; empty: none is",
            "lag_steps": "completed steps that a loss would cost; empty: all",
            "every": "steps from one snapshot to the next",
            "overhead": "measured share of the step time that protection costs; empty: not known yet",
            "overhead_error": "how uncertain that share is",
            "nodes": "how many nodes are in the job",
            "spares": "how many of them are spares",
            "quarantined": "how many of them are quarantined",
            "stragglers": "how many of them are slow",
            "arena_bytes": "memory that snapshots take on all nodes",
            "sent_bytes": "bytes of snapshots that went to holders since the last such event",
            "transfer_bytes_per_s": "bandwidth of one transfer, the mean of all nodes",
            "slowest_bytes_per_s": "bandwidth of one transfer of the slowest node",
            "step_counts": "how many steps of rank 0, since the last such event, took how long: one count per bucket",
            "step_seconds": "how long these steps took together",
        },
    ),
    EventType(
        name="rehearsed",
        meaning="A spare's trainer has run the script up to the training loop as one rank, and is parked there.",
        action="Nothing.",
        console="spare trainer {trainer} has rehearsed rank {rank} and is parked",
    ),
    EventType(
        name="parked_state_freed",
        meaning="A parked trainer has given back the memory of its parameters and optimizer state.",
        action="Nothing; `--parked-state keep` keeps it.",
        fields={"bytes": "how much"},
    ),
    EventType(
        name="parked_state_allocated",
        meaning="The trainer is seated and has allocated that memory again, before it loads its snapshot.",
        action="Nothing.",
        fields={"bytes": "how much", "took_s": "seconds that it took; longer where other processes still had it"},
    ),
    EventType(
        name="rehearsal_ended",
        meaning="A spare's trainer cannot be used for the rank that is needed; a fresh process takes its place.",
        action="Nothing; more `--rehearsals` per spare make it rarer.",
        fields={"node": "its node", "rank": "the rank that it rehearsed", "trainer": "its name", "reason": "why"},
    ),
    EventType(
        name="compiled_code_fetched",
        meaning="A spare has fetched compiled code (torch.compile, Triton) that live ranks use, so that its processes "
        "do not compile it again.",
        action="Nothing. `skipped` says what it does not have: a process that needs it compiles it.",
        fields={
            "source": "the node that has it",
            "files": "how many files",
            "bytes": "how much",
            "skipped": "why some files, or all, were not taken; empty: none was skipped",
        },
    ),
    EventType(
        name="dry_step_failed",
        meaning="A rehearsed step raised an error, so the rest of the rehearsal is left out.",
        action="Make the step run without data of other ranks, or accept a slower first step after a loss.",
        fields={"reason": "the error"},
    ),
    EventType(
        name="awaits_recordings",
        meaning="A rehearsal waits for the result of a collective that the live rank has not passed yet.",
        action="Nothing.",
        fields={"operation": "the collective"},
    ),
    EventType(
        name="recordings_cut",
        meaning="The results of small collectives of a rank are not recorded any further.",
        action="Nothing; a rehearsal of this rank stops where the recording ends.",
        fields={"reason": "why: too large, or not recordable"},
    ),
)


_INSIDE = {"inside": "whether ranks were cut off inside of the step after that version, and went back to it"}

AUDIT_EVENTS = (
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
        name="audit_not_judged",
        meaning="After the recovery that was played every rank had the same state as before, but nothing of what is "
        "protected had changed in the steps that were computed again, only positions of loaders and random numbers. So "
        "equal digests prove nothing: what steps change may be in variables.",
        action="Pass what steps train to `protect`, or give their loss to `job.log`, which is compared too. In a phase "
        "that trains nothing, do nothing, and ask again by `deadpool job audit` when it trains.",
        fields={
            "rank": "the rank that was replaced",
            "step": "the version",
            "ranks": "how many ranks were compared",
            "reason": "why there is no verdict, in words",
        },
        console="NOT JUDGED: a recovery of rank {rank} was played, but {reason}. Pass what steps train to protect(), "
        "or log their loss; `deadpool job audit` asks again",
    ),
    EventType(
        name="audit_given_up",
        meaning="No recovery could be played.",
        action="Ask for it with `deadpool job audit` when the job runs steadily.",
        fields={"reason": "why"},
        console="no recovery was played: {reason}",
    ),
)


JOURNAL_EVENTS = (
    EventType(
        name="journal_failed",
        meaning="A sink of the journal cannot be written; entries wait, and training goes on.",
        action="Free the disk, or look at the server.",
        fields={"sink": "the sink", "reason": "the error"},
    ),
    EventType(
        name="journal_dropped",
        meaning="Too many entries waited for a sink, or the job has ended: entries were given up.",
        action="Free the disk, or look at the server; the other sinks have these entries.",
        fields={"steps": "the steps", "count": "how many entries"},
    ),
    EventType(
        name="actions_lost",
        meaning="What waited in `job.on_final` was lost with the process that held the rank.",
        action="Use `job.log` for what must not have gaps.",
        fields={"step": "the step that training resumed at", "steps": "the steps whose actions are lost"},
    ),
)
