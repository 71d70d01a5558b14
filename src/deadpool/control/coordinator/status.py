"""The status of a running job.

`bandwidth`: how fast copies went to their holders, by the figures that the nodes report. It is logged when a job
ends.

`describe`: the status of a running job as one nested dict, from the coordinator's core and the figures that nodes
report.
"""

from __future__ import annotations

from typing import Any

from deadpool.control.coordinator.progress import STEP_TIMES_FACT, completed_steps
from deadpool.events.event import Event
from deadpool.protocol.coordinator.commits.interval_needs import REMEDIES
from deadpool.protocol.coordinator.core import Coordinator
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.seal import REGIONS


def bandwidth(facts: dict[str, dict[str, Any]]) -> Event | None:
    """None where nothing was sent. A rate is that of one transfer: several may run side by side."""
    sent = {node: fact for node, fact in sorted(facts.items()) if fact.get("push_gbps")}
    if not sent:
        return None
    rates = {node: fact["push_gbps"] for node, fact in sent.items()}
    total = sum(fact["bytes_pushed"] for fact in sent.values())
    slowest = min(rates, key=lambda node: rates[node])
    summary = (
        f"{total / 1e9:.3g} GB to holders by {len(sent)} nodes, a transfer at {_mean(rates):.2f} GB/s, "
        f"slowest {slowest} at {rates[slowest]:.2f} GB/s"
    )
    return Event(what="bandwidth", detail={"bytes_pushed": total, "push_gbps": rates, "summary": summary})


def _mean(rates: dict[str, float]) -> float:
    return sum(rates.values()) / len(rates)


def describe(core: Coordinator, facts: dict[str, dict[str, Any]]) -> dict[str, object]:
    watermark = core.commits.permit.watermark
    newest = completed_steps(core)
    return {
        "phase": core.phase.value,
        "term": core.term,
        "generation": str(core.generation),
        "cause": core.cause,
        "world_size": core.layout.world_size,
        "step": newest,
        "watermark": watermark.number if watermark else None,
        "lag_steps": newest - watermark.number if watermark else None,
        "protected": core.commits.protected,
        "copies_missing": core.commits.ledger.lag(watermark) if watermark else None,
        "interval": _interval(core),
        "overhead": _overhead(core),
        "slots": _slots(core, facts),
        "checkpoint": None,
        "checkpoint_failing": None,
        "durable": None,
        "spares": sum(member.is_spare for member in core.members.values()),
        "size": _size(core),
        "drain": _drain(core),
        "audit": {"under_way": core.audit.is_under_way, "verdicts": core.audit.verdicts},
        "stragglers": [{"node": each.node, **each.facts()} for each in core.stragglers.known.values()],
        "protection": None,
        "corruption": None,
        "step_audits": None,
        **core.features.facts(),
        "same_rack": list(core.commits.placement.same_rack),
        "nodes": [_node(core, member, facts.get(member.node, {})) for member in core.members.values()],
        "ranks": [_rank(core, rank, facts) for rank in range(core.layout.world_size)] if core.seats else [],
    }


def _size(core: Coordinator) -> dict[str, object]:
    return {
        "nodes": len(set(core.seats)),
        "of": core.layout.positions,
        "inexact_from": core.vacancies.inexact_from,
        "may_shrink": core.vacancies.may_fill,
    }


def _drain(core: Coordinator) -> dict[str, object] | None:
    """Describes the drain under way, but no reconfiguration: in that no node leaves."""
    drain = core.drains.current
    return drain.facts() if drain is not None and drain.node is not None else None


def _interval(core: Coordinator) -> dict[str, object]:
    """Steps from one snapshot to the next, as last ordered. The order may begin at a version that is still to come."""
    schedule, why = core.commits.timetable.newest, core.interval_widened
    widened = {"by": why.cause.value, "reason": why.reason, "remedy": REMEDIES[why.cause]} if why is not None else None
    budget = core.settings.overhead_budget
    return {"every": schedule.every, "from": schedule.start, "budget": budget, "widened": widened}


def _slots(core: Coordinator, facts: dict[str, dict[str, Any]]) -> dict[str, object] | None:
    """How many slots every rank has, and the node on which copies take the largest share of what they may take. None:
    no node has told yet."""
    if core.settings.slots:
        return {"asked": core.settings.slots}
    if not core.slots:
        return None
    reports = core.slots.items()
    room, taken = core.slot_room, {node: facts.get(node, {}).get("arena_bytes", 0) for node in core.slots}
    fullest = max(core.slots, key=lambda node: taken[node] / max(1, core.slots[node].arena_bytes))
    return {
        "asked": None,
        "least": min(report.least for _, report in reports),
        "most": max(report.least for _, report in reports),
        "at_most": room.at_most,
        "limit": room.limit.value,
        "fullest": fullest,
        "arena_bytes": taken[fullest],
        "arena_at_most_bytes": core.slots[fullest].arena_bytes,
    }


def _overhead(core: Coordinator) -> dict[str, object] | None:
    measured = core.overhead
    return {"share": measured.share, "error": measured.error, "comparisons": measured.count} if measured else None


def _rank(core: Coordinator, rank: int, facts: dict[str, dict[str, Any]]) -> dict[str, object]:
    """Describes a rank, with the figures that its node reported last: the sizes of its newest snapshot, and the bytes
    that it took on the wire."""
    node = core.seats[core.layout.position_of(rank)]
    figures = facts.get(node, {}).get("rank_figures", {}).get(str(rank), {})
    every, wire_bytes = core.commits.timetable.newest.every, figures.get("wire_bytes")
    sizes = [figures.get(f"{region}_bytes") for region in REGIONS]
    return {
        "rank": rank,
        "node": node,
        **figures,
        "copied_bytes_per_step": sum(sizes) / every if None not in sizes else None,
        "wire_bytes_per_step": sum(wire_bytes.values()) / every if wire_bytes else None,
    }


def _holders(core: Coordinator, position: int) -> list[str]:
    return [core.seats[holder] for holder in core.commits.placement.of(position)]


def _node(core: Coordinator, member: Member, facts: dict[str, Any]) -> dict[str, object]:
    position = member.position
    ranks = list(member.ranks(core.layout))
    return {
        "node": member.node,
        "rack": member.rack,
        "quarantined": core.why_quarantined(member.node) if member.quarantined else None,
        "signs": [],
        **core.features.node_facts(member),
        "role": ("leaving" if member.leaving else "spare") if position is None else "active",
        "position": position,
        "ranks": ranks,
        "steps": {str(rank): member.steps.get(rank) for rank in ranks},
        "own_s": {
            str(rank): core.stragglers.work_times[rank].own_s for rank in ranks if rank in core.stragglers.work_times
        },
        "paused": {str(rank): reason for rank, reason in member.paused.items()},
        "holders": _holders(core, position) if position is not None and core.seats else [],
        "trainers": [{"trainer": t.trainer, "state": t.state, "rank": t.rank} for t in member.trainers],
        **{name: fact for name, fact in facts.items() if name not in ("rank_figures", STEP_TIMES_FACT)},
    }
