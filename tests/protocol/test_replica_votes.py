"""Who is compared with whom, and who is outvoted."""

from __future__ import annotations

import pytest

from deadpool.protocol.features.corruption.coordinator.votes import Ballot, Suspicion, Vote, differing_groups
from deadpool.protocol.identity import Generation, Version

VERSION = Version(Generation(1, 1), 7)


def ballots(said: str, *, per_node: int = 1, step: int = 1, own: bool = True) -> dict[int, Ballot]:
    """`aab`: what each rank says. Ranks `step` apart hold the same. Peers name the rank itself, or only other nodes."""
    found = {}
    for rank, word in enumerate(said):
        alike = range(rank % step, len(said), step)
        peers = tuple(peer for peer in alike if own or peer // per_node != rank // per_node)
        found[rank] = Ballot(rank=rank, node=f"n{rank // per_node}", digest=(1, ord(word)), peers=peers)
    return found


def vote(said: str, **shape: int) -> Vote:
    return Vote(VERSION, differing_groups(ballots(said, **shape)))


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("per_node", [1, 2])
def test_all_that_hold_the_same_are_in_one_group(own, per_node):
    assert differing_groups(ballots("aaaaaa", per_node=per_node, own=own)) == ()
    (group,) = differing_groups(ballots("aaabaa", per_node=per_node, own=own))
    assert [each.rank for each in group.ballots] == [0, 1, 2, 3, 4, 5]


def test_shards_are_compared_apart():
    assert differing_groups(ballots("abab", step=2)) == ()
    (group,) = differing_groups(ballots("abac", step=2))
    assert [each.rank for each in group.ballots] == [1, 3]


@pytest.mark.parametrize(
    ("said", "per_node", "node"),
    [
        ("aba", 1, "n1"),
        ("ab", 1, None),  # nobody knows which
        ("aabb", 1, None),
        ("abc", 1, None),
        ("aaabc", 1, None),  # two nodes at once: that is no single device
        ("aaab", 2, "n1"),
        ("aaabbb", 2, None),
        ("aabbaa", 2, "n1"),
        ("aab", 2, None),  # the majority is on one node only
    ],
)
def test_one_node_is_outvoted_or_none(said, per_node, node):
    assert vote(said, per_node=per_node).outvoted == node


def test_one_node_explains_two_shards():
    found = vote("abababcd", per_node=2, step=2)
    assert found.outvoted == "n3" and found.evidence("n3").ranks == (6, 7)


def test_evidence_names_the_ranks_that_differ_and_no_other_of_that_node():
    assert vote("aaaaab", per_node=2).evidence("n2").ranks == (5,)


def test_whoever_repeats_itself_shows_that_the_step_can_be_repeated():
    suspicion = Suspicion(7)
    suspicion.note(ballots("ab").values())
    assert suspicion.nodes_that_changed(ballots("aa").values()) == {"n1"}
    assert suspicion.is_repeated(ballots("aa").values())
    assert not suspicion.is_repeated(ballots("cc").values()), "the step is not exact, and nobody can be named"
