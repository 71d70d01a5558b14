"""`deadpool node kill` and `--fault`: what cannot be done is refused in words, before anything is started or hit."""

from __future__ import annotations

import pytest
from command import WAITING_SCRIPT, deadpool

MOMENTS = "forward, backward, reduce, clip, optimizer, between, capture, wire, recovered"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["node", "kill"], "give either a node or a rank"),
        (
            ["node", "kill", "--node", "n1", "--at", "lunch", "--step", 3],
            f"at='lunch' is not a moment: give one of {MOMENTS}",
        ),
        (["node", "kill", "--node", "n1", "--at", "wire"], "at=wire needs a step: give --step N"),
        (["node", "kill", "--node", "n1", "--signal", "SIGNOT"], "signal='SIGNOT' is not a signal"),
        (["run", "--fault", "at=lunch step=0 node=n1", WAITING_SCRIPT], f"give one of {MOMENTS}"),
        (["run", "--fault", "step=0 node=n1", WAITING_SCRIPT], "names no moment"),
        (["run", "--fault", "at=forward step=one node=n1", WAITING_SCRIPT], "step='one' is not a number"),
        (["run", "--fault", "at=forward stp=1 node=n1", WAITING_SCRIPT], "'stp' is not one of its words"),
        (
            ["run", "--fault", "at=forward step=0 rank=1", WAITING_SCRIPT],
            "rank=1 cannot be used: give a rank of 0 to 0",
        ),
    ],
)
def test_refused_in_words(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    done = deadpool(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing was started"


def test_help_names_every_moment():
    told = deadpool("node", "kill", "--help").stdout
    assert all(moment in told for moment in MOMENTS.split(", "))
