"""`deadpool node drain` and `deadpool node replace`: what cannot be done is refused in words."""

from __future__ import annotations

import pytest
from command import deadpool


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["node", "drain", "--node", "n1"], "no job was found"),
        (
            ["node", "replace"],
            "no node was chosen: give --straggler for the slowest one, or name one: deadpool node drain --node n3",
        ),
        (["node", "replace", "--straggler"], "no job was found"),
    ],
)
def test_refused_in_words(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    done = deadpool(*arguments)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
