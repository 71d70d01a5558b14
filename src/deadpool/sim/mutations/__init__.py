"""Rules broken on purpose: the checkers are worth something only if they can fail.

Numbers are those of protocol.md's list of mutations and rules; those without one undo a fix that a seed or a reading
asked for.
"""

from deadpool.sim.mutations import drain_mutations, rules, takeover_mutations
from deadpool.sim.mutations.mutation import Mutation, Patch

ALL: tuple[Mutation, ...] = (*rules.MUTATIONS, *takeover_mutations.MUTATIONS, *drain_mutations.MUTATIONS)
BY_NAME: dict[str, Mutation] = {mutation.name: mutation for mutation in ALL}

__all__ = ["ALL", "BY_NAME", "Mutation", "Patch"]
