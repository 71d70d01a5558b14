"""What a kind is: a way in which people write scripts that went wrong once, or that is odd enough to go wrong. One kind
is written into a plain script, so that a difference has one cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from deadpool.errors import ConfigError
from deadpool_lab.strangers.feature import Write

Expected = Literal["exact", "named"]
"""What has to follow a fault: the same to the bit; or DeadPool may have named, before the fault, the rule that the
script breaks.
"""

Victims = Literal["any", "rank 0", "other nodes"]
"""Who is hit: any rank, rank 0, or a rank on another node than rank 0's."""

_MOMENTS = ("forward", "backward", "reduce", "optimizer", "between", "capture", "wire")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """`write` comes last, when model, batches and optimizer are drawn. `brings` names what it brings itself:
    "own_model", "own_data", "own_reduce", "own_optimizer"; with "alone" no habit is added. `keeps` are patterns of
    files, relative to the script's output folder, that a fault must not cost. With `rules` the kind may differ after a
    fault, or lose such files, if one of these rules was named before it; no other rule excuses it."""

    name: str
    about: str
    write: Write
    rules: tuple[str, ...] = ()
    brings: frozenset[str] = frozenset()
    moments: tuple[str, ...] = _MOMENTS
    victims: Victims = "any"
    keeps: tuple[str, ...] = ()
    real_torchrun: bool = False  # the forked launcher waits for a process that ends in a way of its own

    @property
    def expected(self) -> Expected:
        """Rules that only excuse the loss of files leave the computation exact."""
        return "named" if self.rules and not self.keeps else "exact"


def kind_named(kinds: Sequence[Kind], name: str) -> Kind:
    for kind in kinds:
        if kind.name == name:
            return kind
    raise ConfigError(f"kind={name!r} cannot be used: give all or one of {', '.join(kind.name for kind in kinds)}")
