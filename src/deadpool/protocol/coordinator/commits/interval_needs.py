"""How many steps have to lie between two snapshots, by what was measured, and why. Pure functions of reports.

With T the step time, S the slots and B the budget, the interval k has to satisfy, for the worst rank:

    cost per capture       <= B * k * T           captures cost no more than the budget
    step's end to permit   <= (S - 1) * k * T     a slot is free again when it is needed

S is what the node with the least memory can have: slots grow there as they are needed
(`agent/copies/slot_growth.py`), and an interval is wider only where they cannot.

Two things are measured of the cost. How long the optimizer waits for copies is known after some captures, with how
uncertain the mean is. What protection costs in all, with the memory and the processors that it takes from the script,
is known after hundreds of steps, by comparing steps with and without a copy (`agent/copies/capture_costs.py`); this
is what status shows. Waits count as far as that measurement does not contradict them. Only what is certain widens an
interval: the lower ends of both, and of the times to the commit and to the holders. A comparison that is looked at
with every heartbeat would sooner or later leave its interval of 95 % by chance, so it has to be more certain than what
status shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from deadpool.protocol.causes import Widening
from deadpool.protocol.identity import LEFT_OUT
from deadpool.protocol.messages import CaptureCostReport, Overhead, SlotReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The least interval that would do, in steps, and what asks for it."""

    steps: float = 0.0
    cause: Widening = Widening.COST
    reason: str = ""


REMEDIES = {
    Widening.COST: "raise --overhead-budget, or give each step more work (gradient accumulation, a sharded optimizer)",
    Widening.WAITS: "raise --overhead-budget, shard the optimizer, or see --set-aside-gb",
    Widening.BANDWIDTH: "use a faster network between the nodes (--interface), or fewer --holders",
    Widening.SLOTS: "raise --slots, or leave it out: slots then follow from need and memory",
    Widening.MEMORY: "give the nodes more host memory, or lower --holders",
    Widening.MISSED: "see the events capture_missed",
    Widening.FEW_FAILURES: "lower every= in --protect-at-most",
}
"""What a user may do about it."""


def measured(costs: Iterable[CaptureCostReport]) -> Overhead | None:
    """Ranks step together, so one of them speaks for all: the median one."""
    known = sorted((each.overhead for each in costs if each.overhead), key=lambda each: each.share)
    return known[len(known) // 2] if known else None


def by_cost(costs: Iterable[CaptureCostReport], *, every: int, budget: float) -> Need:
    """What is certain to cost more than the budget. At wide intervals the comparison of steps counts for nothing: what
    a script does every 4 steps falls on the same side of each comparison there."""
    costs = tuple(costs)
    slowest = max((each for each in costs if each.stall_s is not None), key=_wait_share, default=None)
    waits = _wait_share(slowest) / every if slowest is not None else None
    whole = measured(costs) if every in LEFT_OUT else None
    limit = f"more than {percent(budget)}"
    if whole is not None and (waits is None or waits < whole.surely):
        told = f"steps beside a copy take {percent(whole.surely)} longer at least, {limit}"
        return Need(steps=whole.surely * every / budget, cause=Widening.COST, reason=told)
    if slowest is None or waits is None:
        return Need()
    if whole is not None and waits > whole.at_most:
        told = f"steps beside a copy take {percent(whole.at_most)} longer at most, {limit}"
        return Need(steps=whole.at_most * every / budget, cause=Widening.COST, reason=told)
    told = f"rank {slowest.rank}: the optimizer waits for copies for {percent(waits)} of the step time, {limit}"
    return Need(steps=waits * every / budget, cause=Widening.WAITS, reason=told)


def by_mean_cost(costs: Iterable[CaptureCostReport], *, every: int, budget: float) -> float:
    """The interval that the means ask for: a narrower one is tried only where these leave room."""
    costs = tuple(costs)
    waits = max(((each.stall_s or 0.0) / each.step_s / every for each in costs), default=0.0)
    whole = measured(costs) if every in LEFT_OUT else None
    share = waits if whole is None else min(max(waits, whole.share), whole.at_most)
    return share * every / budget


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRoom:
    """How many slots every rank can have, and what keeps it from having more."""

    at_most: int
    limit: Widening = Widening.SLOTS
    node: str = ""  # where the limit is; empty: it is the same everywhere


def slot_room(reports: Mapping[str, SlotReport], otherwise: int) -> SlotRoom:
    """A version needs a slot of every rank, so the node with the fewest decides."""
    node, least = min(reports.items(), key=lambda each: (each[1].at_most, each[0]), default=("", None))
    if least is None:
        return SlotRoom(at_most=otherwise)
    return SlotRoom(at_most=max(2, least.at_most), limit=least.limit, node=node)


def by_slots(costs: Iterable[CaptureCostReport], *, every: int, room: SlotRoom) -> Need:
    """A version that takes longer to be sent than the steps up to the next one lets ever more of them wait: then no
    number of slots would do, and the time to the commit says only how many are waiting."""
    costs = tuple(costs)
    slowest = max((each for each in costs if each.send_s is not None), key=_send_share, default=None)
    if slowest is not None and slowest.send_s is not None and _send_share(slowest) > every:
        told = f"rank {slowest.rank}: a version takes {slowest.send_s:.2f} s to be sent, and one is captured every "
        told += f"{every * slowest.step_s:.2f} s"
        return Need(steps=_send_share(slowest), cause=Widening.BANDWIDTH, reason=told)
    late = max((each for each in costs if each.commit_s is not None), key=_commit_share, default=None)
    if late is None or late.commit_s is None:
        return Need()
    between = room.at_most - 1  # one slot keeps the newest committed version
    lasting = f"{between} slot{'s last' if between > 1 else ' lasts'} for {every * between * late.step_s:.2f} s"
    where = f" (node {room.node} has memory for no more)" if room.limit is Widening.MEMORY else ""
    told = f"rank {late.rank}: versions take {late.commit_s:.2f} s to be committed, {lasting}{where}"
    by_commit = _commit_share(late) / between
    by_send = _send_share(slowest) if slowest is not None else 0.0
    return Need(steps=max(by_commit, by_send), cause=room.limit, reason=told)


def _send_share(costs: CaptureCostReport) -> float:
    return (costs.send_s or 0.0) / costs.step_s


def _wait_share(costs: CaptureCostReport) -> float:
    return costs.stall_at_least_s / costs.step_s


def _commit_share(costs: CaptureCostReport) -> float:
    return (costs.commit_s or 0.0) / costs.step_s


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"
