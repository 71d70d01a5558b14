"""Checkers of optional features, from the events of each coordinator and the orders of nodes.

Decisions about protection do not go back and forth, and evictions are prudent: rule 28, protection changes slowly and
within bounds, and rule 29, ill nodes leave one at a time. Each coordinator is judged by its own clock, and by what it
was told.

Rule 30, carried ranks: which rank carries which, and that the job grows again. That a carried rank sees its data, each
part once and in order, is checked where it stands and where it ends, as for every rank: checkers (a), (b) and (h).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from deadpool.protocol.causes import CHANGES
from deadpool.protocol.features.adaptation.coordinator.adaptation import UNGUARDED
from deadpool.protocol.features.adaptation.coordinator.chosen_scheme import SCHEME
from deadpool.protocol.features.adaptation.coordinator.protection import Protection
from deadpool.protocol.health import CERTAIN, LIKELY, gravest
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Plan
from deadpool.protocol.schemes import Scheme
from deadpool_lab.sim.checking import fail

if TYPE_CHECKING:
    from deadpool.protocol.coordinator.core import Coordinator
    from deadpool.protocol.coordinator.membership.members import Member
    from deadpool.protocol.messages import Sign
    from deadpool_lab.sim.hosts import Host
    from deadpool_lab.sim.world import World

GROWS_IN_S = 150.0
"""The time in which a job with spares enough and without faults grows. An attempt that failed just before is repeated
after 60 s.
"""
LOOKS_EVERY_S = 5.0


@dataclass(slots=True)
class ProtectionLog:
    """The changes of one coordinator."""

    dwell_s: float
    within_s: float
    times: list[float] = field(default_factory=list)
    by_subject: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    is_overruled: bool = False  # a person has asked for a scheme

    def add(self, subject: str, value: str, now: float, before: str = UNGUARDED) -> None:
        """`before` is what held before the first change."""
        self.times.append(now)
        recent = [at for at in self.times if now - at < self.within_s]
        if len(recent) > CHANGES:
            fail("rule 28", f"{len(recent)} changes of protection within {self.within_s:g} s, {CHANGES} are allowed")
        history = self.by_subject.setdefault(subject, [])
        earlier = history[-2][1] if len(history) > 1 else before
        if history and value == earlier and now - history[-1][0] < self.dwell_s:
            after_s = now - history[-1][0]
            fail("rule 28", f"{subject} is {value}, {history[-1][1]}, and {value} again after {after_s:.1f} s")
        history.append((now, value))

    def add_scheme(self, scheme: Scheme, now: float, asked: Scheme) -> None:
        if self.is_overruled:
            fail("rule 28", f"the job has chosen {scheme}, and a person had asked for another scheme")
        self.add(SCHEME, str(scheme), now, before=str(asked))

    def on_asked(self, scheme: Scheme | None) -> None:
        """Takes note that a person asked for a scheme. None means that the job is to choose again, and may do so at
        once.
        """
        self.is_overruled = scheme is not None
        self.by_subject.pop(SCHEME, None)

    def on_found(self, scheme: Scheme, now: float) -> None:
        """A successor has found this scheme."""
        self.by_subject[SCHEME] = [(now, str(scheme))]


class ProtectionChecker:
    def __init__(self) -> None:
        self._logs: dict[int, ProtectionLog] = {}  # by coordinator
        self._evicting: str | None = None
        self.changes = 0
        self.was_asked = False  # a person has asked some coordinator for a scheme

    def on_event(self, host: Host, what: str, detail: dict[str, Any]) -> None:
        match what:
            case "protection":
                self.changes += 1
                self._on_change(host, detail["node"], detail["change"])
            case "eviction":
                self._check_eviction(host.coordinator, detail["node"])
                self._evicting = detail["node"]
            case "left" | "spare_lost" | "drain_failed" | "drain_refused" | "fault" | "took_over":
                self._evicting = None

        if what == "took_over" and host.coordinator.settings.adaptive is not None:
            self._log_of(host).on_found(host.coordinator.scheme, host.clock.now)

    def on_scheme_asked(self, host: Host, scheme: Scheme | None) -> None:
        """Takes note that a scheme was asked of a coordinator, which may have refused it."""
        if host.coordinator.settings.adaptive is not None and scheme in (None, host.coordinator.scheme):
            self.was_asked = True
            self._log_of(host).on_asked(scheme)

    def _on_change(self, host: Host, node: str | None, value: str) -> None:
        if node is not None or not _is_scheme(value):
            self._log_of(host).add(node or "the job", value, host.clock.now)
            return
        scheme, asked = Scheme.parse(value), Scheme(copies=host.coordinator.layout.holders)
        self._check_scheme(host.coordinator, scheme, asked)
        self._log_of(host).add_scheme(scheme, host.clock.now, asked)

    def _check_scheme(self, coordinator: Coordinator, scheme: Scheme, asked: Scheme) -> None:
        bounds = coordinator.settings.adaptive
        if bounds is None or scheme not in (asked, bounds.in_groups):
            fail("rule 28", f"the job chooses {scheme}, which is not within {bounds}")
        if scheme.losses < asked.losses:
            fail("rule 28", f"the job chooses {scheme}, which survives fewer losses than {asked}")

    def _log_of(self, host: Host) -> ProtectionLog:
        bounds = host.coordinator.settings.adaptive
        if bounds is None:
            fail("rule 28", "protection has changed, and nobody allowed it")
        assert bounds is not None
        coordinator = host.coordinator
        if id(coordinator) not in self._logs:
            self._logs[id(coordinator)] = ProtectionLog(bounds.dwell_s, bounds.changes_within_s)
        return self._logs[id(coordinator)]

    def _check_eviction(self, coordinator: Coordinator, node: str) -> None:
        """Rule 29 (ill nodes leave one at a time)."""
        if self._evicting is not None:
            fail("rule 29", f"{node} is evicted while {self._evicting} still leaves")
        members = coordinator.members.values()
        spares = [m.node for m in members if m.is_spare and not (m.quarantined or m.doubted)]
        signs = _signs(coordinator, coordinator.members[node])
        if not spares or (len(spares) < 2 and gravest(signs) < CERTAIN):
            fail("rule 29", f"{node} is evicted for {signs}, and {spares} are the spares that are left")
        own = [sign.kind for sign in signs if sign.grade >= LIKELY and not self._is_shared(coordinator, sign.kind)]
        if not own:
            fail("rule 29", f"{node} is evicted for {signs}, which most nodes show")

    def _is_shared(self, coordinator: Coordinator, kind: str) -> bool:
        seated = [m for m in coordinator.members.values() if m.position is not None]
        showing = [m for m in seated if any(sign.kind == kind for sign in _signs(coordinator, m))]
        return len(showing) > 1 and 2 * len(showing) > len(seated)


def _signs(coordinator: Coordinator, member: Member) -> tuple[Sign, ...]:
    """The signs that the node shows, as it has told."""
    protection = coordinator.features.find(Protection)
    return protection.health_of(member).signs if protection is not None else ()


def _is_scheme(value: str) -> bool:
    """Tells whether the value is a scheme: else it is an interval, or what most nodes show."""
    return value.startswith(("copies=", "rs("))


class ShrinkChecker:
    def __init__(self, world: World) -> None:
        self._world = world
        self._generation: Generation | None = None
        self._carrier: dict[int, int | None] = {}  # by rank, in that plan; None: it has a process
        self._node: dict[int, str] = {}  # by rank, in that plan
        self._deadline = 0.0

    @property
    def carried(self) -> dict[int, int]:
        """Ranks without a process in the newest plan, and the ranks that carry them."""
        return {rank: carrier for rank, carrier in self._carrier.items() if carrier is not None}

    @property
    def has_shard_at_one_home(self) -> bool:
        """Some node is the home of all ranks that hold the same tensors."""
        homes: dict[int | None, set[str]] = {}
        for rank, node in self._node.items() if self.carried else ():
            homes.setdefault(self._world.history.shard_of(rank), set()).add(node)
        return any(len(nodes) == 1 for nodes in homes.values())

    @property
    def carrying_nodes(self) -> set[str]:
        return {self._node[rank] for rank in self.carried}

    # --- plans --------------------------------------------------------------------------------------------------------

    def on_plan(self, node: str, plan: Plan) -> None:
        if plan.generation != self._generation:
            self._generation, self._carrier, self._node = plan.generation, {}, {}
        orders = {order.rank: order for order in plan.orders}
        for rank, order in orders.items():
            self._carrier[rank], self._node[rank] = order.carrier, node
            if order.carrier is None:
                continue
            if not self._world.may_shrink:
                fail("rule 30", f"{plan.generation} has no process for rank {rank}, and the user did not allow it")
            if order.carrier not in orders or orders[order.carrier].carrier is not None:
                fail("rule 30", f"rank {order.carrier} carries rank {rank} on {node}, and has no process there")
            if self._world.history.shard_of(rank) != self._world.history.shard_of(order.carrier):
                fail("rule 30", f"rank {order.carrier} carries rank {rank}, and holds other tensors")

    def on_go(self) -> None:
        """All nodes have been sent their parts, unless theirs were as before: then no rank is carried."""
        carried = self.carried
        if not carried:
            return
        world_size, shards = self._world.layout.world_size, self._world.options.shards
        if len(self._carrier) != world_size:
            fail("rule 30", f"{self._generation}: ranks {sorted(self._carrier)} of {world_size} have a seat")
        for first in range(0, world_size, shards):
            self._check_replica(range(first, first + shards), carried)
        nodes, holders = set(self._node.values()), self._world.layout.holders
        if len(nodes) <= holders:
            fail("rule 30", f"{self._generation} goes on with {sorted(nodes)}: {holders} copies of each need more")

    def _check_replica(self, ranks: range, carried: dict[int, int]) -> None:
        """Ranks that need each other within a share: all of them, or none, and carriers that need each other too."""
        missing = [rank for rank in ranks if rank in carried]
        by = {carried[rank] // len(ranks) for rank in missing}
        if missing and (len(missing) < len(ranks) or len(by) > 1):
            fail("rule 30", f"{self._generation}: of the replica of ranks {list(ranks)}, {missing} have no process")

    # --- liveness -----------------------------------------------------------------------------------------------------

    def expect_growth(self, grown: Callable[[], None]) -> None:
        """Called when faults have ended. `grown` is called once the job runs and no rank is carried."""
        self._deadline = self._world.clock.now + GROWS_IN_S
        self._look(grown)

    def _look(self, grown: Callable[[], None]) -> None:
        world = self._world
        if world.has_running_job and not self.carried:
            grown()
            return
        if world.has_running_job and world.clock.now > self._deadline:
            fail("rule 30", f"spares have been there for long, and ranks {sorted(self.carried)} are still carried")
        world.clock.after(LOOKS_EVERY_S, partial(self._look, grown))
