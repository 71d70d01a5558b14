"""Nodes in network namespaces, and what arrives when they are cut off. In a process that leaves its own network."""

from __future__ import annotations

import subprocess
import sys

import pytest
from waiting import LIMIT_S

PROGRAM = """
import itertools
import socket
import sys
import threading
from deadpool_lab.chaos.surroundings.network import HUB, Namespaces

network = Namespaces()
try:
    network.start()
except OSError:
    sys.exit(77)
for node in ("n0", "n1"):
    network.add(node)


def inside(node, action):
    found = []
    def work():
        if node != HUB:
            network.enter(node)
        found.append(action())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]


def listener(node):
    def make():
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((network.host(node), 5000))
        sock.settimeout(0.1)
        return sock
    return inside(node, make)


sockets = {node: listener(node) for node in (HUB, "n0", "n1")}


numbers = itertools.count()


def arrives(sender, receiver, tries):
    words = set()
    for _ in range(tries):  # the first may wait for an address to be found
        words.add(str(next(numbers)).encode())
        sockets[sender].sendto(max(words, key=int), (network.host(receiver), 5000))
        try:
            while sockets[receiver].recv(100) not in words:
                pass  # of a question before this one
            return True
        except TimeoutError:
            continue
    return False


def show(expected):
    # Whatever should arrive is awaited for as long as it takes; what should not is tried a few times.
    ways = [(a, b) for a in sockets for b in sockets if a != b]
    found = [arrives(a, b, 3 if way == "0" else 1000) for (a, b), way in zip(ways, expected, strict=True)]
    print("".join(str(int(each)) for each in found))

whole, isolated, deaf_hub, half = sys.argv[1:]
show(whole)
network.isolate("n0"); show(isolated)
network.rejoin("n0"); show(whole)
network.cut([("n0", HUB)]); show(deaf_hub)
network.cut([(HUB, "n1"), ("n0", HUB)]); show(half)
network.mend([("n0", HUB)]); show(half)
network.mend([("n0", HUB), (HUB, "n1")]); show(whole)
for sock in sockets.values():
    sock.close()
network.close()
"""

# Ways: hub->n0 hub->n1 n0->hub n0->n1 n1->hub n1->n0
WHOLE = "111111"
ISOLATED = "010010"  # only hub and n1 reach each other
DEAF_HUB = "110111"
HALF = "100111"


def test_packets_are_lost_where_it_was_cut_and_nowhere_else():
    command = [sys.executable, "-c", PROGRAM, WHOLE, ISOLATED, DEAF_HUB, HALF]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode == 77:
        pytest.skip("this user may not make network namespaces")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [WHOLE, ISOLATED, WHOLE, DEAF_HUB, HALF, HALF, WHOLE], "cut twice, mended once: cut"
