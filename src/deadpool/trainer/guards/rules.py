"""What a script has to do itself in order to be exact: those rows of "Up to the script" in docs/exactness.md that are
looked for.

Whoever finds that a script does otherwise names the rule, and the rule says what to do instead.
"""

from __future__ import annotations

from enum import StrEnum


class Rule(StrEnum):
    STATE_IN_VARIABLES = "state_in_variables"
    BATCH_BEFORE_STEP = "batch_before_step"
    UNPROTECTED_LOADER = "unprotected_loader"
    KEPT_GRADIENTS = "kept_gradients"
    PENDING_HANDLES = "pending_handles"
    UNCOUNTED_WRITES = "uncounted_writes"
    REPLACED_OBJECTS = "replaced_objects"
    LATE_GROUPS = "late_groups"
    FILES_BEFORE_LOOP = "files_before_loop"
    FILES_FROM_LOOP = "files_from_loop"
    SERVED_STORE = "served_store"
    UNEXPLAINED = "unexplained"

    @property
    def remedy(self) -> str:
        return _REMEDIES[self]


_REMEDIES = {
    Rule.STATE_IN_VARIABLES: "Keep it in an object with state_dict() and load_state_dict(), pass that to protect(), or "
    "derive it from step.number.",
    Rule.BATCH_BEFORE_STEP: "Draw the batch inside `with step:`, or write zip(job.steps(n), loader), steps first.",
    Rule.UNPROTECTED_LOADER: "Use torchdata's StatefulDataLoader, pass it to protect() and draw inside `with step:`.",
    Rule.KEPT_GRADIENTS: "Accumulate inside of one step: a step of the job is one step of the optimizer.",
    Rule.PENDING_HANDLES: "Wait for the handle inside of the step that began it.",
    Rule.UNCOUNTED_WRITES: "Write to the tensor itself, in torch.no_grad(): torch does not count other writes.",
    Rule.REPLACED_OBJECTS: "Make it before protect() and write into it later, for example with copy_().",
    Rule.LATE_GROUPS: "Make the group before the loop, or in the first step.",
    Rule.FILES_BEFORE_LOOP: "Do it only `if deadpool.first_start:`, and open logs to append.",
    Rule.FILES_FROM_LOOP: "Read it only `if deadpool.first_start:`, and pass what follows from it to protect(), in an "
    "object with state_dict() and load_state_dict().",
    Rule.SERVED_STORE: "Let the store live where no trainer does, or exchange values by collectives of a group.",
    Rule.UNEXPLAINED: "Compare the step with docs/exactness.md, and report it if nothing there explains it.",
}
