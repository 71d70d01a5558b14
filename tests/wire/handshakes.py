"""Both sides of a handshake for tests, and what a wire remembers of one."""

from __future__ import annotations

from deadpool.wire.handshake import Handshake

SECRET = b"the job's own secret"
CARRIER = b"\1" * 32


class Wire:
    """Carries a whole handshake and remembers what was said by whom."""

    def __init__(self, client: Handshake, server: Handshake) -> None:
        self.said: dict[str, list[bytes]] = {"client": [], "server": []}
        data = client.opening()
        speakers = [("client", server), ("server", client)]
        while data:
            name, hearer = speakers[0]
            self.said[name].append(data)
            data = hearer.feed(data)
            speakers.reverse()


def client(secret=SECRET, purpose="control", **more) -> Handshake:
    return Handshake(secret, "client", purpose, **more)


def server(secret=SECRET, purpose="control", **more) -> Handshake:
    return Handshake(secret, "server", purpose, **more)
