"""Seeds that have found a defect, each under the name of the defect. They pass since it was mended."""

from __future__ import annotations

import pytest

from deadpool_lab.sim.profiles import BY_NAME
from deadpool_lab.sim.run import run_seed

FOUND = {
    "a damaged floor is offered to its holder for ever, and nothing newer gets there": ("anything", 218),
    "a holder whose copy is found damaged after the plan lacks the floor": ("anything", 431),
    "a node that missed a start from the first line keeps the recordings of an earlier start": ("anything", 2673),
    "a node that has just come back leaves in a recovery that needs its copies": ("anything", 4824),
    "a plan goes back to a version that the permit had passed, from live memory": ("anything", 5552),
    "a node that never heard of its seat cannot tell whether a start that was broken off has run": ("anything", 10749),
    "a coordinator that stalls past a deadline is woken for it when it runs again": ("anything", 13183),
    "a single coordinator plans anew beside nodes that it cannot reach, and that go on": ("anything", 14956),
    "a node that ended since faults had ended its processes is not there": ("anything", 20340),
    "a newcomer's copy counts on no peers, and replicas seem to differ": ("births", 2),
    "a plan that lets a node leave and replaces a lost one has no majority": ("anything", 321),
    "orders of a newer plan take the place of those that a process still loads by": ("long_loads", 58),
    "a recording lost with its node and its coordinator is kept to itself by the spare that has it": (
        "succession",
        107,
    ),
    "a recording that did not count, since its node had no seat, is not told again": ("succession", 256),
    "a recording that did not count, since its node was late for a takeover, is not told again": ("anything", 655),
    "a node whose acknowledgement was lost with its link does not acknowledge the same fence again": ("anything", 695),
    "late news of a start voids recordings of that same start": ("returns", 103),
    "a seat of a plan that never went keeps out the nodes that ran last": ("succession", 38),
    "a time that has passed wakes the coordinator for ever where no checkpoint can begin": ("durable", 0),
    "a newcomer still loads from a slot that a plan which goes back to a checkpoint has given away": ("durable", 58),
    "a node whose drain fails after its ranks have moved is not sent again the recordings that it cleared": (
        "illness",
        220,
    ),
    "a node that comes back clears its recordings, and is not sent them again": ("anything", 18),
    "a spare whose report comes after a takeover is never asked to rehearse anything": ("coded", 217),
    "a rank that stayed is named for a step that is not exact, since all others have moved": ("corruption", 210),
    "a snapshot that is damaged before Go keeps everything newer from the parities of others": ("coded_pairs", 179),
    "a version that a node is drained at is given up, since a holder could not store it": ("coded_pairs", 4),
    "the cut of an older generation ends what loads from a checkpoint in this one": ("durable", 63),
    "newcomers count on replicas of ranks that counted on none, and these seem to differ": ("shrink", 78),
    "a node that came back counts as in its loop, and the job neither drains nor grows": ("shrink", 323),
    "a node that lost its seat under a plan that never went has cleared recordings that no other node has": (
        "coded",
        1016,
    ),
    "what a node keeps that is cut off for ever is said to be enough for a rebuild": ("coded", 1713),
    "a spare that is taken back while the script begins anew is not told the recordings that follow": (
        "anything",
        400954,
    ),
    "a spare that came back and heard the next fence before it was taken back never gets its recordings again": (
        "coded",
        300372,
    ),
    "a whole copy from before snapshots were coded counts as parity": ("memory", 201),
    "a newcomer ends its load after its slot was given away and before its newer seat has come": ("illness", 600060),
    "a node that was to give ranks away is lost, comes back before Go, and nothing is drained or grows any more": (
        "shrink",
        601302,
    ),
    "a recording that is told by the node that carries the rank does not count, and is not told again": (
        "shrink",
        700809,
    ),
    "a rank whose script ends under a fence counts as ended, and its node never acknowledges the fence": ("ending", 68),
    "garbage of an aborted collective, which only some ranks have sealed, is taken for an error of a device": (
        "anything",
        75,
    ),
    "a fetched copy names few of its peers, and its replica on another node does not count": ("shrink", 735),
}


@pytest.mark.parametrize("what", list(FOUND))
def test_what_a_seed_found_holds(what: str) -> None:
    profile, seed = FOUND[what]
    result = run_seed(seed, profile=BY_NAME[profile])
    assert result.violation is None, f"{result.violation}\n{result.replay}"
