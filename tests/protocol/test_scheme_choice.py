"""Whole copies or parity, by the memory of nodes: what leads to which, within which bounds, and who may overrule."""

from __future__ import annotations

import pytest

from deadpool.protocol.causes import AdaptiveBounds
from deadpool.protocol.features.adaptation.coordinator.adaptation import Change, Memory, Outlook, Pacing
from deadpool.protocol.features.adaptation.coordinator.chosen_scheme import LONGEST_WAIT, SCHEME, SchemeChoice
from deadpool.protocol.schemes import Scheme

DWELL_S = 600.0
GIB = 1 << 30
COPIES, TWO_COPIES = Scheme(copies=1), Scheme(copies=2)
RS41, RS82 = Scheme(data=4, parities=1), Scheme(data=8, parities=2)


def node(name="n3", *, total=100, available=40, own=20, held=20):
    return Memory(
        node=name, total=total * GIB, available=int(available * GIB), copies=int((own + held) * GIB), own=int(own * GIB)
    )


def outlook(scheme=COPIES, *memory, asked=COPIES, positions=10, **named):
    given = {"suspects": (), "spares": 1, "is_settled": True, **named}
    filled = (*memory, *(node(f"m{p}") for p in range(positions - len(memory))))
    return Outlook(scheme=scheme, asked=asked, positions=positions, memory=filled, **given)


def choice(coded=RS41, **named):
    bounds = AdaptiveBounds(copies_at_most=1, dwell_s=DWELL_S, in_groups=coded, **named)
    return SchemeChoice(bounds, Pacing(bounds))


def chosen(changes: list[Change]) -> list[str]:
    return [change.value for change in changes if change.subject == SCHEME]


FULL = node(own=31, held=30)


def all_roomy(scheme=RS41, **named):
    return outlook(scheme, *(node(f"m{p}", available=70, own=10, held=3) for p in range(10)), **named)


def test_copies_that_take_too_much_are_coded_and_the_sentence_says_why():
    (change,) = choice().decide(outlook(COPIES, FULL), 0.0)
    assert change.value == "rs(4,1)"
    assert change.reason == (
        "copies take 61% of the memory of n3, more than the 50% allowed: snapshots are coded as rs(4,1), "
        "for which a node keeps 25% as much for others"
    )


def test_memory_that_another_process_eats():
    (change,) = choice().decide(outlook(COPIES, node(available=8)), 0.0)
    assert change.reason.startswith("n3 has only 8% of its memory left: snapshots are coded as rs(4,1)")


@pytest.mark.parametrize(
    ("why", "seen"),
    [
        ("enough memory", outlook(COPIES)),
        ("at the limit", outlook(COPIES, node(own=25, held=25))),
        ("memory is not known", outlook(COPIES, Memory(node="n3"))),
        ("its own snapshots fill it", outlook(COPIES, node(own=60, held=4))),
        ("no room for parity beside copies", outlook(COPIES, node(own=31, held=30, available=7))),
        ("ranks are carried", outlook(COPIES, FULL, is_full=False)),
        ("something else is under way", outlook(COPIES, FULL, is_settled=False)),
        ("groups of two save nothing", outlook(COPIES, FULL, positions=2)),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_copies_stay(why, seen):
    assert choice().decide(seen, 0.0) == []


def test_no_room_for_parity_is_told():
    one = choice()
    one.decide(outlook(COPIES, node(own=31, held=30, available=7)), 0.0)
    assert one.reason.endswith("but n3 has no room for parity beside its copies")


@pytest.mark.parametrize(
    ("asked", "coded", "allowed"),
    [(COPIES, None, False), (TWO_COPIES, RS41, False), (TWO_COPIES, RS82, True), (COPIES, RS82, True)],
    ids=["not allowed", "fewer losses", "as many losses", "more losses"],
)
def test_never_fewer_losses_than_the_user_asks_for_and_never_unasked(asked, coded, allowed):
    decided = choice(coded).decide(outlook(asked, FULL, asked=asked), 0.0)
    assert chosen(decided) == ([str(coded)] if allowed else [])


def test_copies_return_after_the_dwell_time_where_they_fit_clearly():
    one = choice()
    one.decide(outlook(COPIES, FULL), 0.0)
    assert one.decide(all_roomy(), DWELL_S - 1) == []
    # Whole copies would take 40 of 50 %: more than three quarters of what is allowed.
    assert one.decide(outlook(RS41, *(node(own=20, held=5) for _ in range(10))), DWELL_S) == []
    assert one.decide(all_roomy(is_settled=False), DWELL_S) == []
    (change,) = one.decide(all_roomy(), DWELL_S)
    assert change.value == "copies=1"
    assert change.reason == (
        "whole copies would take 20% of a node's memory at most, and 50% are allowed: "
        "snapshots are protected by copies=1 again"
    )


@pytest.mark.parametrize(
    "other",
    [node(available=25, own=10, held=3), Memory(node="n3"), node(available=70, own=30, held=3)],
    ids=["no memory would be left", "not known", "the largest neighbour"],
)
def test_one_node_keeps_copies_from_returning(other):
    one = choice()
    one.decide(outlook(COPIES, FULL), 0.0)
    rest = [node(f"m{p}", available=70, own=10, held=3) for p in range(9)]
    assert one.decide(outlook(RS41, other, *rest), 10 * DWELL_S) == []


def test_each_time_that_copies_are_given_up_again_it_takes_twice_as_long():
    one, now, waits = choice(), 0.0, []
    for _ in range(9):
        assert chosen(one.decide(outlook(COPIES, FULL), now)) == ["rs(4,1)"]
        coded_at = now
        while not one.decide(all_roomy(), now):
            now += DWELL_S
        waits.append((now - coded_at) / DWELL_S)
        now += 6 * DWELL_S
    assert waits == [1, 2, 4, 8, 16, 32, LONGEST_WAIT, LONGEST_WAIT, LONGEST_WAIT]


def test_a_successor_keeps_parity_that_it_finds_for_a_whole_dwell_time():
    one = choice()
    one.adopt(all_roomy(), 1000.0)
    assert one.decide(all_roomy(), 1000.0 + DWELL_S - 1) == []
    assert chosen(one.decide(all_roomy(), 1000.0 + DWELL_S)) == ["copies=1"]


def test_a_scheme_that_is_neither_was_asked_for_by_a_person_and_stays():
    """Of a coordinator before this one."""
    one = choice()
    assert one.decide(outlook(Scheme(data=2, parities=1), FULL), 0.0) == []
    assert one.decide(all_roomy(TWO_COPIES), 10 * DWELL_S) == []


def test_a_person_overrules():
    one = choice()
    one.is_overruled = True
    assert one.decide(outlook(COPIES, FULL), 0.0) == one.decide(all_roomy(), 10 * DWELL_S) == []
    one.is_overruled = False
    assert chosen(one.decide(outlook(COPIES, FULL), 0.0)) == ["rs(4,1)"]


@pytest.mark.parametrize(
    ("scheme", "positions", "share"),
    [("copies=2", 8, 2.0), ("rs(4,1)", 5, 1 / 4), ("rs(4,1)", 6, 1 / 2), ("rs(4,1)", 3, 1 / 2), ("rs(2,2)", 6, 2.0)],
)
def test_what_a_node_keeps_for_others(scheme, positions, share):
    """Of six nodes rs(4,1) makes two groups of three."""
    assert Scheme.parse(scheme).held_share(positions) == share
