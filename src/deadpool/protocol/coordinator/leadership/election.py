"""An election: which nodes have come, which have promised to follow, and what they report. Part of `leadership.py`.

No node is asked to promise before enough nodes are here to elect a coordinator: a promise to a process that is not
elected would only take the node away from the coordinator that there is.
"""

from __future__ import annotations

from deadpool.protocol.coordinator.outbox import CoordinatorConfig
from deadpool.protocol.inputs import FromAgent
from deadpool.protocol.messages import Join, TakeoverReport
from deadpool.protocol.quorum import Footing, Quorum, electorates, newest_plan


class Election:
    def __init__(self, config: CoordinatorConfig, name: str, term: int) -> None:
        """`term` is the least term that is asked for. The election asks for a higher one than any that it hears of."""
        self._config, self._layout, self._name = config, config.settings.layout, name
        self.term = term
        self.joins: dict[str, Join] = {}
        self.reports: dict[str, TakeoverReport] = {}
        self.news: list[FromAgent] = []  # what nodes said since they reported
        self._reported_at: dict[str, float] = {}
        self._asked: set[str] = set()
        self._began_at: float | None = None
        self.decides_at: float | None = None  # it is elected: until then it waits for the last reports
        self.short_at: float | None = None  # some nodes that ran are here, but too few: when that is reported
        self._has_reported_short = False

    def start(self, now: float) -> None:
        if self._began_at is None:
            self._began_at = now

    def discount_stall(self, seconds: float) -> None:
        """Rule 20, timeouts: this process did not run for so long."""
        self.decides_at = self.decides_at + seconds if self.decides_at is not None else None
        self._began_at = self._began_at + seconds if self._began_at is not None else None
        self.short_at = self.short_at + seconds if self.short_at is not None else None

    # --- which nodes are here -----------------------------------------------------------------------------------------

    def on_join(self, node: str, join: Join) -> None:
        self.on_lost(node)
        self.joins[node] = join
        promise = join.footing.promise
        if not promise.allows(self.term, self._name):
            self._raise_term(promise.term + 1)

    def on_lost(self, node: str) -> None:
        self.joins.pop(node, None)
        self.reports.pop(node, None)
        self._asked.discard(node)
        self.news = [said for said in self.news if said.node != node]

    def _raise_term(self, term: int) -> None:
        """Every node has to be asked again."""
        self.term = term
        self.reports.clear()
        self._asked.clear()
        self.news.clear()

    def on_message(self, input: FromAgent, now: float) -> None:
        """A node that has not reported yet will tell it in its report; a new node has nothing to report."""
        node, message = input.node, input.message
        if isinstance(message, TakeoverReport):
            if node in self.joins and message.term == self.term:
                self.reports[node], self._reported_at[node] = message, now
        elif node in self.reports or (node in self._asked and self.joins[node].footing.is_new):
            self.news.append(input)

    def alone_s(self, now: float) -> float:
        """How long ago most nodes have lost the coordinator before this one: a single node may have been cut off
        earlier."""
        each = sorted(report.alone_s + now - self._reported_at[node] for node, report in self.reports.items())
        return each[len(each) // 2] if each else 0.0

    # --- whether they are enough --------------------------------------------------------------------------------------

    def to_ask(self) -> list[str]:
        """Nodes whose promise is wanted now. Each is asked once."""
        if not self._is_enough({node: join.footing for node, join in self.joins.items()}):
            return []
        wanted = [node for node in self.joins if node not in self._asked]
        self._asked.update(wanted)
        return wanted

    def _is_enough(self, footings: dict[str, Footing]) -> bool:
        """Rule 18, one coordinator per term. Where no node was seated there is no electorate and nothing to take
        over."""
        voters = {(node, self.joins[node].incarnation): footing for node, footing in footings.items()}
        sat = electorates(self._layout.positions, voters)
        return any(each.is_represented for each in sat) and Quorum(alone=self._config.is_alone, electorates=sat).has(
            voters
        )

    def is_decided(self, now: float) -> bool:
        """Tells whether the coordinator is elected and waits for no more reports: a node that has not reported by now
        is lost as usual.
        """
        if not self._is_enough({node: report.footing for node, report in self.reports.items()}):
            self.decides_at = None
            return False
        if self.decides_at is None:
            self.decides_at = now + self._config.deadlines.node_s
        return now >= self.decides_at or self._has_all_reports()

    def _has_all_reports(self) -> bool:
        """Every seat of the newest plan has reported."""
        footings = [report.footing for report in self.reports.values()]
        plan = newest_plan(footings)
        seated = {footing.position for footing in footings if footing.planned == plan}
        return len(seated - {None}) == self._layout.positions

    def is_short(self, now: float) -> bool:
        """True once, where nodes that could vote have been here for a while and are too few."""
        could_vote = any(join.footing.position is not None for join in self.joins.values())
        if self._has_reported_short or self.decides_at is not None or not could_vote:
            self.short_at = None
        elif self.short_at is None:
            self.short_at = now + self._config.deadlines.node_s
        elif now >= self.short_at:
            self._has_reported_short, self.short_at = True, None
            return True
        return False

    @property
    def hopeless_at(self) -> float | None:
        """Where there are several coordinator processes, another one may have a majority. Where there is only this one,
        no other can say that the job is over."""
        if self._began_at is None or not self._config.is_alone:
            return None
        return self._began_at + self._config.deadlines.spare_wait_s

    @property
    def can_form(self) -> bool:
        """All nodes of the job are here, and none of them was ever part of it: it never began."""
        new = all(join.footing.is_new for join in self.joins.values())
        return new and sum(not join.spare for join in self.joins.values()) >= self._layout.positions
