"""Nodes in network namespaces, and what arrives when they are cut off. In a process that leaves its own network."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import itertools
import socket
import sys
import threading
from deadpool.chaos.network import HUB, Namespaces

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
        sock.settimeout(0.3)
        return sock
    return inside(node, make)


sockets = {node: listener(node) for node in (HUB, "n0", "n1")}


numbers = itertools.count()


def arrives(sender, receiver):
    words = {str(next(numbers)).encode() for _ in range(3)}  # the first may wait for an address to be found
    for word in words:
        sockets[sender].sendto(word, (network.host(receiver), 5000))
        try:
            while sockets[receiver].recv(100) not in words:
                pass  # of a question before this one
            return True
        except TimeoutError:
            continue
    return False


def picture():
    return "".join(str(int(arrives(a, b))) for a in sockets for b in sockets if a != b)

print(picture())
network.isolate("n0"); print(picture())
network.rejoin("n0"); print(picture())
network.cut([("n0", HUB)]); print(picture())
network.cut([(HUB, "n1"), ("n0", HUB)]); print(picture())
network.mend([("n0", HUB)]); print(picture())
network.mend([("n0", HUB), (HUB, "n1")]); print(picture())
for sock in sockets.values():
    sock.close()
network.close()
"""

WAYS = "hub->n0 hub->n1 n0->hub n0->n1 n1->hub n1->n0"


def test_packets_are_lost_where_it_was_cut_and_nowhere_else():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    if done.returncode == 77:
        pytest.skip("this user may not make network namespaces")
    assert done.returncode == 0, done.stderr
    whole, isolated, rejoined, deaf_hub, half, mended_once, mended = done.stdout.split()
    assert len(WAYS.split()) == len(whole)
    assert whole == rejoined == mended == "111111"
    assert isolated == "010010", "only hub and n1 reach each other"
    assert deaf_hub == "110111"
    assert half == mended_once == "100111", "cut twice, mended once"
