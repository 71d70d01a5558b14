"""Mutations of the rule of machines that serve several jobs."""

from __future__ import annotations

from deadpool.protocol.features.leases.agent.lease import MachineLease
from deadpool.protocol.messages import Plan
from deadpool_lab.sim.mutations.mutation import Mutation, Patch


def plan_taken_before_the_lease(patch: Patch) -> None:
    real = MachineLease.permits

    def permits(self: MachineLease, plan: Plan) -> bool:
        real(self, plan)
        return True

    patch.set(MachineLease, "permits", permits)


MUTATIONS = [
    Mutation(47, "plan taken before the lease", plan_taken_before_the_lease, rule=31, profile="leases"),
]
