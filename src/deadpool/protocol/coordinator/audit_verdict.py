"""The verdict of an audit of exactness: what ranks have told the first time, and what again, side by side.

A script is exact if every rank has told the same again. Else the first part that differs is named, causes before their
effects, with the rule that it points to. If nothing that shows what steps compute has changed in the steps that were
computed again, equal digests prove nothing: then there is no verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from deadpool.protocol.coordinator.outbox import Outbox
from deadpool.protocol.messages import Audit, Part
from deadpool.protocol.messages.rehearsals import PartKind

_RULES: dict[PartKind, str] = {
    "position": "batch_before_step",
    "object": "state_in_variables",
    "modes": "state_in_variables",
    "floats": "state_in_variables",
    "random": "state_in_variables",
    "buffer": "state_in_variables",
    "logged": "state_in_variables",
    "gradient": "state_in_variables",
    "parameter": "state_in_variables",
    "optimizer": "state_in_variables",
}
"""What a difference points to where steps were computed again: if only results differ, a step has read something that
was not protected."""

_NOT_PUT_BACK = "unexplained"
"""Nothing was computed again, so whatever differs was not put back as it had been."""

_SEEN_BY_GUARDS = (
    "unprotected_loader",
    "batch_before_step",
    "kept_gradients",
    "state_in_variables",
    "replaced_objects",
    "uncounted_writes",
)
"""Rules by which state differs, the most certain ones first. A guard that has seen a script break one of them knows
better than the kind of what differs."""

_NOTHING_COMPARED = (
    "nothing that is protected changed in the steps that were computed again, so whether the script is exact is not "
    "known"
)

Parts = tuple[Part, ...]
_KINDS = get_args(PartKind)
_MOST_UNDECIDED = 4
"""Parts that are named to people, although they decide nothing."""


@dataclass(slots=True)
class Told:
    """What ranks have told, by rank."""

    first: dict[int, Parts] = field(default_factory=dict)
    again: dict[int, Parts] = field(default_factory=dict)
    unmoved: set[int] = field(default_factory=set)  # ranks of which nothing changed in the steps that they redid
    named: set[str] = field(default_factory=set)  # rules that guards of ranks have named


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """`facts` are for people, in the status; empty: nothing could be said. `differs`: what does, and of which rank."""

    facts: dict[str, object] = field(default_factory=dict)
    differs: str = ""


def judge(order: Audit, told: Told, world_size: int, out: Outbox) -> AuditVerdict:
    """Compares what ranks told, and tells the verdict by an event."""
    compared = sorted(told.first.keys() & told.again.keys())
    found = {rank: _differences(told.first[rank], told.again[rank]) for rank in compared}
    if any(part.decides for parts in found.values() for part in parts):
        return _say_what_differs(order, told, found, out)
    if len(compared) < world_size:
        reason = f"after the recovery only {len(compared)} of {world_size} ranks could be compared"
        out.emit("audit_given_up", reason=reason)
        return AuditVerdict()
    if len(told.unmoved) == world_size:
        return _say_nothing_compared(order, found, out)
    return _say_passed(order, told, found, out)


def _say_passed(order: Audit, told: Told, found: dict[int, list[Part]], out: Outbox) -> AuditVerdict:
    undecided = [f"{_describe(part)} of rank {rank}" for rank, parts in found.items() for part in parts]
    more = {"undecided": undecided[:_MOST_UNDECIDED], "unmoved": sorted(told.unmoved)}
    out.emit(
        "audit_passed",
        rank=order.rank,
        step=order.number,
        ranks=len(found),
        inside=order.inside,
        found="the same state again" + _except_for(undecided) + _but_unmoved(told.unmoved),
    )
    return AuditVerdict(_facts(order, found) | more)


def _say_nothing_compared(order: Audit, found: dict[int, list[Part]], out: Outbox) -> AuditVerdict:
    """What steps change is then in what protect() does not know, or they only draw batches, as in a phase that trains
    nothing."""
    out.emit("audit_not_judged", rank=order.rank, step=order.number, ranks=len(found), reason=_NOTHING_COMPARED)
    return AuditVerdict(_facts(order, found) | {"exact": None, "reason": _NOTHING_COMPARED})


def _say_what_differs(order: Audit, told: Told, found: dict[int, list[Part]], out: Outbox) -> AuditVerdict:
    differ = {rank: part for rank, parts in found.items() for part in parts[::-1] if part.decides}
    rank, part = next(iter(differ.items()))
    what, rule = _describe(part), _rule(order, told, part)
    out.emit(
        "audit_differs",
        rank=rank,
        step=order.number,
        part=what,
        rule=rule,
        ranks=list(differ),
        replaced=order.rank,
        inside=order.inside,
    )
    facts = _facts(order, found) | {"exact": False, "rank": rank, "part": what, "rule": rule}
    return AuditVerdict(facts, f"{what} of rank {rank}")


def _rule(order: Audit, told: Told, part: Part) -> str:
    seen = [rule for rule in _SEEN_BY_GUARDS if rule in told.named]
    return _NOT_PUT_BACK if order.inside else [*seen, _RULES[part.kind]][0]


def _facts(order: Audit, found: dict[int, list[Part]]) -> dict[str, object]:
    inside, ranks = order.inside, len(found)
    return {"replaced": order.rank, "step": order.number, "inside": inside, "exact": True, "ranks": ranks}


def _differences(first: Parts, again: Parts) -> list[Part]:
    """The parts that differ, or that one of the two lacks, causes before their effects."""
    before, now = {(p.kind, p.name): p for p in first}, {(p.kind, p.name): p for p in again}
    differ = [part for key, part in (now | before).items() if not _is_equal(before.get(key), now.get(key))]
    return sorted(differ, key=lambda part: _KINDS.index(part.kind))


def _is_equal(first: Part | None, again: Part | None) -> bool:
    return first is not None and again is not None and first.digest == again.digest


def _describe(part: Part) -> str:
    return f"{part.kind} {part.name}".rstrip()


def _but_unmoved(ranks: set[int]) -> str:
    names = ", ".join(map(str, sorted(ranks)))
    return f"; nothing protected of ranks {names} changed in these steps, so of these nothing is known" if ranks else ""


def _except_for(undecided: list[str]) -> str:
    if not undecided:
        return ""
    more = len(undecided) - _MOST_UNDECIDED
    named = ", ".join(undecided[:_MOST_UNDECIDED]) + (f" and {more} more" if more > 0 else "")
    return f", except for {named}, which alone decide nothing"
