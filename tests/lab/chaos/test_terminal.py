"""A terminal that is closed while processes still print to it."""

from __future__ import annotations

import os

import pytest

from deadpool_lab.chaos.surroundings.processes import Terminal


@pytest.fixture
def terminal(tmp_path):
    terminal = Terminal(tmp_path / "said")
    terminal.open()
    yield terminal
    terminal.close()


def test_whoever_printed_to_it_fails_and_later_ones_print_to_another(terminal):
    early = os.dup(terminal.descriptor)
    os.write(early, b'{"what": "go"}\n{"wha')
    terminal.replace()
    with pytest.raises(OSError, match="Input/output error"):
        os.write(early, b"lost")
    os.close(early)
    os.write(terminal.descriptor, b'\nno json\n{"what": "fence"}\n')
    terminal.replace()
    assert list(terminal.records()) == [{"what": "go"}, {"what": "fence"}]
    assert terminal.number == 3


def test_much_is_printed(terminal):
    for number in range(2000):
        os.write(terminal.descriptor, b'{"number": %d, "much": "%s"}\n' % (number, b"x" * 500))
    terminal.replace()
    assert [record["number"] for record in terminal.records()] == list(range(2000))
