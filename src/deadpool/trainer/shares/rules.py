"""The rules for shares of steps. They hold with and without protection, so that a script that runs under torchrun also
runs under DeadPool, and one that runs with all ranks also runs while some are carried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from deadpool.errors import ConfigError

Makers = Mapping[str, Callable[[int], object]]

RESERVED = ("rank", "is_own", "entered")
"""What every share has by itself."""


def make_own(makers: Makers, objects: Mapping[str, object], rank: int) -> dict[str, object]:
    """This rank's own objects of protect(shares=...)."""
    for name in makers:
        if name in objects:
            raise ConfigError(f"protect() got {name}= and shares={{{name!r}: ...}}: give it once, in shares")
        if name in RESERVED or name.startswith("_"):
            taken = ", ".join(RESERVED)
            raise ConfigError(
                f"protect() got shares={{{name!r}: ...}}, but share.{name} is the share's own: give it another name, "
                f"not {taken} and none that begins with an underscore"
            )
    return {name: make(rank) for name, make in makers.items()}


class SharesDone:
    """Which shares of a step the script has done. A step without one of them would be another step."""

    def __init__(self) -> None:
        self._missing: list[int] | None = None  # None: the script has not asked for shares in this step
        self.step = -1

    @property
    def asked(self) -> bool:
        return self._missing is not None

    def enter_step(self, number: int) -> None:
        self.step, self._missing = number, None

    def ask(self, ranks: Iterable[int]) -> None:
        """The script begins a loop over shares. It may have several in a step, each over all shares."""
        self.require_all()
        self._missing = list(ranks)

    def left(self, rank: int) -> None:
        if self._missing and rank in self._missing:
            self._missing.remove(rank)

    def require_entered(self, rank: int, entered: bool) -> None:
        if not entered:
            raise ConfigError(
                f"the share of rank {rank} in step {self.step} was not entered: put its forward and backward into "
                "`with share:`"
            )

    def require_all(self) -> None:
        if self._missing:
            ranks = ", ".join(map(str, self._missing))
            raise ConfigError(
                f"step {self.step} ended its loop over step.shares() before the work of rank {ranks} was done: go "
                "through all shares (`for share in step.shares():`, without break or next()), since the rank's own "
                "comes last"
            )
