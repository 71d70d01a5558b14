"""`deadpool job protect` says what will hold, and when."""

from __future__ import annotations

from deadpool.cli.job import _in_words


def test_what_holds_from_the_next_plan_on_is_not_called_done() -> None:
    words = _in_words("rs(4,1)", "copies=1")
    assert words.startswith("snapshots will be protected by rs(4,1) instead of copies=1 from the next plan on")


def test_what_is_asked_for_twice_changes_nothing() -> None:
    assert "nothing changes" in _in_words("copies=1", "copies=1")
