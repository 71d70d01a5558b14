"""What a running job looks like: one nested dict, from the coordinator's core and what the nodes say of themselves."""

from __future__ import annotations

from typing import Any

from deadpool.protocol.coordinator import Coordinator
from deadpool.protocol.members import Member


def describe(core: Coordinator, facts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    watermark = core.permit.watermark
    newest = max((step for m in core.members.values() for step in m.steps.values()), default=0)
    return {
        "phase": core.phase.value,
        "generation": str(core.generation),
        "cause": core.cause,
        "world_size": core.layout.world_size,
        "step": newest,
        "watermark": watermark.number if watermark else None,
        "lag_steps": newest - watermark.number if watermark else None,
        "protected": core.protected,
        "copies_missing": core.ledger.lag(watermark) if watermark else None,
        "same_rack": list(core.placement.same_rack),
        "nodes": [_node(core, member, facts.get(member.node, {})) for member in core.members.values()],
    }


def _node(core: Coordinator, member: Member, facts: dict[str, Any]) -> dict[str, Any]:
    position = member.position
    ranks = list(core.layout.ranks_at(position)) if position is not None else []
    return {
        "node": member.node,
        "rack": member.rack,
        "role": "spare" if position is None else "active",
        "position": position,
        "ranks": ranks,
        "steps": {str(rank): member.steps.get(rank) for rank in ranks},
        "holders": [core.seats[p] for p in core.placement.of(position)] if position is not None else [],
        "trainers": [{"trainer": t.trainer, "state": t.state, "rank": t.rank} for t in member.trainers],
        **facts,
    }
