"""Makes the process groups a part of the boundary record: a rank that resumes at a version has the groups of then."""

from __future__ import annotations

from typing import Any

from deadpool.host.notes import note
from deadpool.trainer.process.init_process_group import DefaultGroup
from deadpool.trainer.process.session import Session

GROUPS = "process groups"
"""The name of this part in the boundary record."""


class BoundaryGroups:
    """Is captured and restored like any object with a state dict; the restore comes before the groups are rebuilt."""

    def __init__(self, session: Session, default_group: DefaultGroup) -> None:
        self._session, self._default_group = session, default_group

    def state_dict(self) -> dict[str, Any]:
        return {**self._session.groups.mark(), "default_groups": self._default_group.made_count}

    def load_state_dict(self, mark: dict[str, Any]) -> None:
        self._default_group.made_count = mark["default_groups"]
        forgotten = self._session.groups.return_to(mark)
        if forgotten:
            self._session.emit("groups_forgotten", names=list(forgotten))
            if not self._session.groups.detached:  # no code of a live rank holds what a rehearsal made
                note(_advice(forgotten))


def _advice(names: tuple[str, ...]) -> str:
    return (
        f"process groups {', '.join(names)} were made after the step boundary from which the job resumes: they are "
        "forgotten, and the step makes them again. Code that still holds one from before the fault gets an error when "
        "it uses it: make groups before the loop over steps"
    )
