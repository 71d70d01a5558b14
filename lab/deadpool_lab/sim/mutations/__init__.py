"""Rules of the protocol broken on purpose, to show that the checkers can fail.

docs/protocol.md lists them by number, each with the rule that it breaks.
"""

from deadpool_lab.sim.mutations import (
    corruption_mutations,
    membership_mutations,
    protection_mutations,
    rules,
    takeover_mutations,
)
from deadpool_lab.sim.mutations.mutation import Mutation, Patch

ALL: tuple[Mutation, ...] = tuple(
    sorted(
        (
            *rules.MUTATIONS,
            *takeover_mutations.MUTATIONS,
            *membership_mutations.LEAVING_MUTATIONS,
            *protection_mutations.MUTATIONS,
            *membership_mutations.SHRINK_MUTATIONS,
            *corruption_mutations.MUTATIONS,
        ),
        key=lambda mutation: mutation.number,
    )
)
BY_NAME: dict[str, Mutation] = {mutation.name: mutation for mutation in ALL}

__all__ = ["ALL", "BY_NAME", "Mutation", "Patch"]
