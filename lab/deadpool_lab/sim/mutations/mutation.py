"""A rule that is broken on purpose for a while."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_INHERITED = object()


class Patch:
    """Replaces attributes of classes and modules until it is undone."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()

    def undo(self) -> None:
        while self._before:
            owner, name, value = self._before.pop()
            if value is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, value)

    def set(self, owner: Any, name: str, value: Any) -> None:
        assert hasattr(owner, name), f"{owner} has no {name} that a mutation could replace"
        self._before.append((owner, name, vars(owner).get(name, _INHERITED)))
        setattr(owner, name, value)


@dataclass(frozen=True, slots=True)
class Mutation:
    """One defect, as docs/protocol.md lists it: its number there, what it is, and the rule that it breaks."""

    number: int
    defect: str
    apply: Callable[[Patch], None]
    rule: int
    profile: str = "anything"  # the mix of faults in which it is looked for
    seeds: int = 1000  # within which a checker has to object

    @property
    def name(self) -> str:
        return f"{self.number} {self.defect}"
