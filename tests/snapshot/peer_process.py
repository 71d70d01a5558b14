"""A peer of the data plane in its own process, which a test can kill.

half-push HOST PORT   sends half of a chunk, prints that, and waits to be killed
die-on-push           accepts a push, reads a little, and kills itself
hang-on-push          accepts a push, reads a little, then neither reads nor ends
hold                  is a correct holder, and prints each outcome
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

from snapshot_nodes import Holder, Owner, accept_half_of_a_push, push_half


def say(*words) -> None:
    print(json.dumps(words), flush=True)


def main() -> None:
    match sys.argv[1:]:
        case ["half-push", host, port]:
            _stream = push_half((host, int(port)), Owner())
            say("half")
            sys.stdin.read()
        case ["die-on-push" | "hang-on-push" as mode]:
            listener = socket.create_server(("127.0.0.1", 0))
            say(*listener.getsockname())
            _stream = accept_half_of_a_push(listener)
            if mode == "die-on-push":
                os.kill(os.getpid(), signal.SIGKILL)
            sys.stdin.read()
        case ["hold"]:
            holder = Holder()
            say(*holder.address)
            word, seal, reason = holder.outcome()
            say(word, seal.rank, reason, holder.header() == seal)
            sys.stdin.read()
            holder.close()


main()
