"""The process groups as a part of the boundary record: whoever comes back to a version has the groups it had then."""

from __future__ import annotations

from typing import Any

from deadpool.notes import note
from deadpool.trainer.init_process_group import DefaultGroup
from deadpool.trainer.session import Session


class BoundaryGroups:
    """Restored like any object with a state, before the groups are rebuilt."""

    def __init__(self, session: Session, default_group: DefaultGroup) -> None:
        self._session, self._default_group = session, default_group

    def state_dict(self) -> dict[str, Any]:
        return {**self._session.groups.mark(), "default_groups": self._default_group.made_count}

    def load_state_dict(self, mark: dict[str, Any]) -> None:
        self._default_group.made_count = mark["default_groups"]
        forgotten = self._session.groups.return_to(mark)
        if forgotten:
            self._session.emit("groups_forgotten", names=list(forgotten))
            if not self._session.groups.detached:  # what a rehearsal made is nobody's loss
                note(_advice(forgotten))


def _advice(names: tuple[str, ...]) -> str:
    return (
        f"process groups {', '.join(names)} were made after the step boundary to which the job came back: they are "
        "forgotten, and the step makes them again. Code that keeps one from before the fault gets an error from it: "
        "make groups before the loop over steps"
    )
