"""Standing for coordinator: who has come, who has promised, and what they report. Pure; part of `leadership.py`.

Nobody is asked to promise before enough nodes are here to make an election of it: a promise given to somebody who is
not elected would only cost the coordinator that there is.
"""

from __future__ import annotations

from deadpool.protocol.effects import FromAgent
from deadpool.protocol.messages import Join, TakeoverReport
from deadpool.protocol.quorum import Footing, Quorum, electorates, newest_plan
from deadpool.protocol.topology import Layout


class Candidacy:
    def __init__(self, name: str, layout: Layout, *, alone: bool, term: int) -> None:
        """`term` is the least that it asks for; it asks for more than any that it hears of."""
        self._name, self._layout, self._alone = name, layout, alone
        self.term = term
        self.joins: dict[str, Join] = {}
        self.takeover_reports: dict[str, TakeoverReport] = {}
        self.news: list[FromAgent] = []  # since they reported
        self._asked: set[str] = set()
        self.decides_at: float | None = None  # elected: until then the others are waited for
        self.began_at: float | None = None
        self.short_at: float | None = None  # some who ran are here, and are too few: then people are told
        self.has_told = False

    # --- who is here -------------------------------------------------------------------------------------------------

    def come(self, node: str, join: Join) -> None:
        self.leave(node)
        self.joins[node] = join
        promise = join.footing.promise
        if not promise.allows(self.term, self._name):
            self._outbid(promise.term + 1)

    def leave(self, node: str) -> None:
        self.joins.pop(node, None)
        self.takeover_reports.pop(node, None)
        self._asked.discard(node)
        self.news = [said for said in self.news if said.node != node]

    def excuse(self, seconds: float) -> None:
        self.decides_at = self.decides_at + seconds if self.decides_at is not None else None
        self.began_at = self.began_at + seconds if self.began_at is not None else None
        self.short_at = self.short_at + seconds if self.short_at is not None else None

    @property
    def waits_for_others(self) -> bool:
        """Somebody is here who would vote, and nobody was elected."""
        return not self.decides_at and any(join.footing.position is not None for join in self.joins.values())

    def _outbid(self, term: int) -> None:
        """Everybody has to be asked again."""
        self.term = term
        self.takeover_reports.clear()
        self._asked.clear()
        self.news.clear()

    def hear(self, said: FromAgent) -> None:
        """Who has not reported yet will tell it then; who is new has nothing to report."""
        node, message = said.node, said.message
        if isinstance(message, TakeoverReport):
            if node in self.joins and message.term == self.term:
                self.takeover_reports[node] = message
        elif node in self.takeover_reports or (node in self._asked and self.joins[node].footing.is_new):
            self.news.append(said)

    # --- whether it is enough ----------------------------------------------------------------------------------------

    def to_ask(self) -> list[str]:
        """Whose promise is wanted now; they are asked once."""
        if not self._is_enough({node: join.footing for node, join in self.joins.items()}):
            return []
        wanted = [node for node in self.joins if node not in self._asked]
        self._asked.update(wanted)
        return wanted

    @property
    def is_elected(self) -> bool:
        return self._is_enough(
            {node: takeover_report.footing for node, takeover_report in self.takeover_reports.items()}
        )

    def _is_enough(self, footings: dict[str, Footing]) -> bool:
        """Rule 18, one coordinator per term. Without anybody who was seated there is nothing to be elected by, or to
        take over."""
        voters = {(node, self.joins[node].incarnation): footing for node, footing in footings.items()}
        sat = electorates(self._layout.positions, voters)
        return any(each.is_represented for each in sat) and Quorum(alone=self._alone, electorates=sat).has(voters)

    @property
    def has_all(self) -> bool:
        """Every seat of the newest plan has reported."""
        footings = [takeover_report.footing for takeover_report in self.takeover_reports.values()]
        plan = newest_plan(footings)
        seated = {footing.position for footing in footings if footing.planned == plan}
        return len(seated - {None}) == self._layout.positions

    @property
    def can_form(self) -> bool:
        """All nodes of the job are here, and none of them was ever part of it: it never began."""
        new = all(join.footing.is_new for join in self.joins.values())
        return new and sum(not join.spare for join in self.joins.values()) >= self._layout.positions
