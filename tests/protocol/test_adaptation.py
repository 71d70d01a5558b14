"""Decisions about protection: what they follow from, what bounds them, and that they never go back and forth."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterable

import pytest

from deadpool.protocol.causes import CHANGES, AdaptiveBounds
from deadpool.protocol.features.adaptation.coordinator.adaptation import (
    ENVIRONMENT,
    EVICTED,
    GUARDED,
    INTERVAL,
    UNGUARDED,
    Adaptation,
    Change,
    Memory,
    Outlook,
    Pacing,
    Suspect,
)
from deadpool.protocol.features.adaptation.coordinator.chosen_scheme import SCHEME, SchemeChoice
from deadpool.protocol.health import CERTAIN, CORRECTABLE, DOUBTFUL, HOT, LIKELY, LINK_ERRORS, UNCORRECTABLE
from deadpool.protocol.messages import Sign
from deadpool.protocol.schemes import Scheme

DWELL_S = 600.0
MIB = 1 << 20
STORMS = Sign(kind=CORRECTABLE, grade=LIKELY, count=3)
ONE_STORM = Sign(kind=CORRECTABLE, grade=DOUBTFUL, count=1)
BROKEN = Sign(kind=UNCORRECTABLE, grade=CERTAIN)


def bounds(**named):
    return AdaptiveBounds(**{"copies_at_most": 2, "dwell_s": DWELL_S, **named})


def outlook(*suspects, **named):
    given = {"positions": 8, "scheme": Scheme(copies=1), "spares": 2, "is_settled": True, **named}
    return Outlook(suspects=suspects, **given)


def suspect(node, *signs, position=0, **named):
    return Suspect(node=node, position=position, signs=signs, **named)


def told(changes: Iterable[Change]) -> list[tuple[str, str]]:
    return [(change.subject, change.value) for change in changes]


# --- guards -----------------------------------------------------------------------------------------------------------


def test_node_with_three_storms_is_guarded_and_the_sentence_says_why():
    (change,) = Adaptation(bounds()).decide(outlook(suspect("n17", STORMS)), 0.0)
    assert change.reason == (
        "n17 has 3 correctable ECC storms in 10 minutes: its ranks are held once more, and a spare rehearses them"
    )
    assert (change.subject, change.value, change.raises) == ("n17", GUARDED, True)


@pytest.mark.parametrize(
    ("who", "guarded"),
    [
        (suspect("n1", ONE_STORM), False),
        (suspect("n1", per_hour=0.04), False),
        (suspect("n1", ONE_STORM, per_hour=0.04, failures={"node": 1}), True),
        (suspect("n1", per_hour=0.09, failures={"node": 2}), True),
        (suspect("n1", STORMS, position=None), False),
    ],
    ids=["a doubtful sign", "one failure", "both", "two failures", "no seat"],
)
def test_what_is_enough_for_a_guard(who, guarded):
    assert bool(Adaptation(bounds()).decide(outlook(who), 0.0)) is guarded


def test_guard_stays_for_its_dwell_time_and_until_the_lower_limit():
    adaptation = Adaptation(bounds())
    adaptation.decide(outlook(suspect("n1", STORMS)), 0.0)
    assert adaptation.decide(outlook(suspect("n1")), DWELL_S - 1) == []
    assert adaptation.decide(outlook(suspect("n1", per_hour=0.03)), DWELL_S + 1) == []
    assert told(adaptation.decide(outlook(suspect("n1")), DWELL_S + 2)) == [("n1", UNGUARDED)]
    assert adaptation.decide(outlook(suspect("n1", STORMS)), DWELL_S + 3) == []
    assert told(adaptation.decide(outlook(suspect("n1", STORMS)), 2 * DWELL_S + 3)) == [("n1", GUARDED)]


def test_a_successor_keeps_a_guard_that_it_finds_for_a_whole_dwell_time():
    adaptation = Adaptation(bounds())
    adaptation.adopt(["n1"], 1000.0)
    assert adaptation.decide(outlook(suspect("n1")), 1000.0 + DWELL_S - 1) == []
    assert told(adaptation.decide(outlook(suspect("n1")), 1000.0 + DWELL_S)) == [("n1", UNGUARDED)]


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ({"scheme": Scheme(copies=2)}, "copies=2 is all that is allowed or possible"),
        ({"positions": 2}, "copies=1 is all that is allowed or possible"),
        ({"scheme": Scheme(data=4, parities=1)}, "snapshots are coded as rs(4,1)"),
        ({"commit_room": 1.2}, "versions would take too long to be committed"),
        ({"memory": [Memory(total=1000 * MIB, available=900 * MIB, copies=400 * MIB, own=200 * MIB)] * 8}, "too few"),
        ({"memory": [Memory(total=1000 * MIB, available=100 * MIB, copies=200 * MIB, own=200 * MIB)] * 8}, "too few"),
    ],
    ids=["the user's bound", "two nodes", "coded", "slow links", "the user's share of memory", "memory that is left"],
)
def test_no_further_holder(named, why):
    (change,) = Adaptation(bounds()).decide(outlook(suspect("n1", STORMS), **named), 0.0)
    assert why in change.reason and "a spare rehearses them" in change.reason


def test_there_is_room_for_a_further_holder():
    memory = [Memory(total=1000 * MIB, available=500 * MIB, copies=200 * MIB, own=200 * MIB)] * 8
    (change,) = Adaptation(bounds()).decide(outlook(suspect("n1", STORMS), memory=memory), 0.0)
    assert "held once more" in change.reason


def test_what_most_nodes_show_is_the_environment():
    adaptation = Adaptation(bounds(evict_ill=True))
    hot = Sign(kind=HOT, grade=LIKELY)
    crowd = [suspect(f"n{p}", hot, position=p) for p in range(5)]
    (change,) = adaptation.decide(outlook(*crowd), 0.0)
    assert change.subject == ENVIRONMENT and change.reason.startswith("5 of 8 nodes show hot: that is the environment")
    assert adaptation.decide(outlook(*crowd), DWELL_S) == []
    # It ends only when few are left: else the last ones to cool down would be taken for ill.
    assert adaptation.decide(outlook(*crowd[:3]), 2 * DWELL_S) == []
    assert told(adaptation.decide(outlook(crowd[0]), 3 * DWELL_S)) == [("n0", EVICTED)]


def test_beside_the_environment_a_sign_of_its_own_counts():
    crowd = [suspect(f"n{p}", Sign(kind=HOT, grade=DOUBTFUL), position=p) for p in range(5)]
    ill = suspect("n7", Sign(kind=HOT, grade=DOUBTFUL), BROKEN, position=7)
    assert ("n7", GUARDED) in told(Adaptation(bounds()).decide(outlook(*crowd, ill), 0.0))


# --- evictions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sign", "spares", "evicted"),
    [(STORMS, 2, True), (STORMS, 1, False), (BROKEN, 1, True), (BROKEN, 0, False), (ONE_STORM, 5, False)],
    ids=["likely", "likely, last spare", "certain, last spare", "no spare", "doubtful"],
)
def test_who_is_evicted(sign, spares, evicted):
    decided = told(Adaptation(bounds(evict_ill=True)).decide(outlook(suspect("n1", sign), spares=spares), 0.0))
    assert (("n1", EVICTED) in decided) is evicted


def test_evicted_one_at_a_time_the_worst_first():
    adaptation = Adaptation(bounds(evict_ill=True))
    both = (suspect("n1", STORMS, position=1), suspect("n2", BROKEN, position=2))
    assert told(adaptation.decide(outlook(*both), 0.0)) == [("n2", EVICTED), ("n1", GUARDED)]
    assert adaptation.decide(outlook(both[0]), DWELL_S - 1) == []
    assert told(adaptation.decide(outlook(both[0]), DWELL_S)) == [("n1", EVICTED)]


@pytest.mark.parametrize("named", [{"evict_ill": False}, {"evict_ill": True}])
def test_nothing_is_evicted_unasked_or_beside_something_else(named):
    decided = Adaptation(bounds(**named)).decide(outlook(suspect("n1", BROKEN), is_settled=not named["evict_ill"]), 0.0)
    assert told(decided) == [("n1", GUARDED)]


# --- the interval -----------------------------------------------------------------------------------------------------


def test_interval_follows_costs_and_failures_within_the_bounds():
    adaptation = Adaptation(bounds(every_at_most=16))
    calm = {"stall_s": 0.01, "step_s": 1.0}
    (wider,) = adaptation.decide(outlook(**calm), 0.0)
    assert (wider.subject, wider.value, wider.raises) == (INTERVAL, "16", False)
    danger = [suspect(f"n{p}", BROKEN, position=p) for p in range(2)]
    narrower = [c for c in adaptation.decide(outlook(*danger, **calm), DWELL_S) if c.subject == INTERVAL]
    assert [(c.value, c.raises) for c in narrower] == [("4", True)]
    assert "2.01 failures per hour are to be expected" not in wider.reason


def test_interval_stays_where_the_user_gives_no_bound():
    assert Adaptation(bounds()).decide(outlook(stall_s=10.0, step_s=0.1), 0.0) == []


# --- never back and forth ---------------------------------------------------------------------------------------------


SCHEME_CHANGES_A_DAY = 18
"""Parity stays for 1, 2, 4 .. dwell times of ten minutes: seven of these are a day, and each may begin and end."""


class Watcher:
    """Objects to more changes than the budget within any hour, to A, B, A within the dwell time, and to a scheme that
    goes to and fro all day."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.by_subject: dict[str, list[tuple[float, str]]] = defaultdict(list)

    def add(self, change: Change, now: float) -> None:
        self.times.append(now)
        self.by_subject[change.subject].append((now, change.value))

    def objections(self) -> list[str]:
        hour_s = CHANGES * DWELL_S
        found = [
            f"{self.times[index]:.0f} s: change {CHANGES + 1} within an hour"
            for index in range(CHANGES, len(self.times))
            if self.times[index] - self.times[index - CHANGES] < hour_s
        ]
        if len(self.by_subject[SCHEME]) > SCHEME_CHANGES_A_DAY:
            found.append(f"{len(self.by_subject[SCHEME])} changes of the scheme in a day")
        for subject, history in self.by_subject.items():
            values = [(-DWELL_S, "copies=1" if subject == SCHEME else UNGUARDED), *history]
            for (_, first), (at, _), (again_at, again) in zip(values, values[1:], values[2:], strict=False):
                if first == again and again_at - at < DWELL_S:
                    found.append(f"{subject} was {first} again after {again_at - at:.0f} s")
        return found


def spiteful_memory(rng: random.Random, scheme: Scheme) -> list[Memory]:
    """Copies take too much wherever they are whole, and would fit wherever they are not."""
    spite = rng.random() < 0.8
    own = rng.choice((300, 260, 251) if spite != scheme.in_groups else (100, 180, 187, 190)) * MIB
    held = own // (4 if scheme.in_groups else 1)
    left = rng.choice((99, 120) if spite != scheme.in_groups else (400, 700)) * MIB
    return [Memory(node=f"n{p}", total=1000 * MIB, available=left, copies=own + held, own=own) for p in range(8)]


def adversary(seed: int) -> Watcher:
    """A day of health that changes whenever a change would hurt most: at the limits, at the ends of dwell times, and
    of many nodes at once."""
    rng = random.Random(seed)
    scheme, coded = Scheme(copies=1), Scheme(data=4, parities=1)
    adaptation = Adaptation(bounds(evict_ill=rng.random() < 0.5, every_at_most=rng.choice((0, 16)), in_groups=coded))
    choice = SchemeChoice(adaptation.bounds, adaptation.pacing)
    watcher, now, flipping = Watcher(), 0.0, [f"n{p}" for p in range(rng.choice((1, 2, 6)))]
    signs = ((), (ONE_STORM,), (STORMS,), (BROKEN,), (Sign(kind=LINK_ERRORS, grade=LIKELY),))
    shown = dict.fromkeys(flipping, ())
    while now < 24 * 3600:
        now += rng.choice((1.0, 5.0, DWELL_S - 1.0, DWELL_S / 2))
        for node in flipping:
            guarded = node in adaptation.guarded
            spite = rng.choice(signs[:1] if guarded else signs[2:]) if rng.random() < 0.7 else rng.choice(signs)
            shown[node] = spite
        per_hour = rng.choice((0.0, 0.0124, 0.0126, 0.049, 0.051))
        crowd = [suspect(n, *shown[n], position=p, per_hour=per_hour) for p, n in enumerate(flipping)]
        costs = {"stall_s": rng.choice((0.001, 0.1, 1.0)), "step_s": 1.0}
        memory = spiteful_memory(random.Random(f"{seed} {now}"), scheme)
        told = {"scheme": scheme, "asked": Scheme(copies=1), "memory": memory}
        seen = outlook(*crowd, spares=rng.randint(0, 3), **costs, **told)
        for change in (*adaptation.decide(seen, now), *choice.decide(seen, now)):
            watcher.add(change, now)
            scheme = Scheme.parse(change.value) if change.subject == SCHEME else scheme
    return watcher


def test_never_back_and_forth_under_an_adversary():
    watchers = [adversary(seed) for seed in range(60)]
    assert [objection for watcher in watchers for objection in watcher.objections()] == []
    assert sum(len(watcher.times) for watcher in watchers) > 1000, "too few decisions to show anything"
    schemes = [len(watcher.by_subject[SCHEME]) for watcher in watchers]
    assert sum(schemes) > 200, "too few changes of the scheme to show anything"


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("_has_dwelt", lambda self, subject, now: True),
        ("_has_budget", lambda self, now, raises: True),
        ("spend", lambda self, subject, now: None),
    ],
)
def test_the_watcher_objects_where_a_rule_is_broken(monkeypatch, name, broken):
    monkeypatch.setattr(Pacing, name, broken)
    assert any(adversary(seed).objections() for seed in range(5))


def test_the_watcher_objects_to_a_scheme_that_goes_to_and_fro_with_every_dwell_time(monkeypatch):
    monkeypatch.setattr(SchemeChoice, "may_return", lambda self, now: True)
    assert any("changes of the scheme" in each for seed in range(5) for each in adversary(seed).objections())


def test_danger_finds_budget_that_calm_has_left():
    """What lowers protection may not use up the budget: the last changes are for what raises it."""
    adaptation, nodes = Adaptation(bounds()), [f"n{p}" for p in range(6)]
    adaptation.adopt(nodes, 0.0)
    lowered = adaptation.decide(outlook(*(suspect(n, position=p) for p, n in enumerate(nodes))), DWELL_S)
    assert len(lowered) == CHANGES - 2
    danger = [suspect(f"n{p}", BROKEN, position=p) for p in (6, 7)]
    assert len(adaptation.decide(outlook(*danger), DWELL_S + 1)) == 2
    assert all(isinstance(change.reason, str) for change in itertools.chain(lowered))
