"""One line is one write, so that no line of another process comes into the midst of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

SAYS = "from deadpool.control.console import print_line; print_line('first'); print_line('second')"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_line_is_one_write(unbuffered):
    ours, childs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # what one write brings is one message
    with ours, childs:
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        subprocess.run([sys.executable, "-c", SAYS], stdout=childs, env=environment, timeout=300, check=True)
        assert [ours.recv(100), ours.recv(100)] == [b"first\n", b"second\n"]
