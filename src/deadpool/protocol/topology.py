"""Where ranks sit: pure functions of positions, never of node names. Where copies go is in coordinator/placement.py.

A position is a place for a node in the job's layout; it outlives the node that fills it.
"""

from __future__ import annotations

from deadpool.protocol.structs import Value


class Layout(Value, frozen=True, kw_only=True):
    """The job's fixed shape: `positions` nodes of `per_node` ranks, every rank with `holders` copies elsewhere."""

    positions: int
    per_node: int
    holders: int

    @property
    def world_size(self) -> int:
        return self.positions * self.per_node

    def position_of(self, rank: int) -> int:
        return rank // self.per_node

    def local_rank(self, rank: int) -> int:
        return rank % self.per_node

    def ranks_at(self, position: int) -> range:
        return range(position * self.per_node, (position + 1) * self.per_node)


LEFT_OUT_OF = 61  # a prime: what a script does every so many steps must not fall on the same ones
LEFT_OUT = {1: 3, 2: 1}
"""The number of versions in a row that are left out, by the interval, so that two steps run beside no copy and beside
nothing that is still being sent."""


class Schedule(Value, frozen=True, kw_only=True):
    """All ranks capture the same versions: those from `start` on whose number is a multiple of `every`.

    If `left_out_of` is set, a few of so many are left out where the interval is so narrow that every step would run
    beside a copy: what copies cost can be measured only against steps without them."""

    every: int = 1
    start: int = 0
    left_out_of: int = 0

    def captures(self, number: int) -> bool:
        return (
            number >= self.start and number % self.every == 0 and not (self.left_out_of and self._is_left_out(number))
        )

    def _is_left_out(self, number: int) -> bool:
        left_out = LEFT_OUT.get(self.every, 0)
        return left_out > 0 and number // self.every % self.left_out_of >= self.left_out_of - left_out


LAST_PORT = 65535


class Address(Value, frozen=True, kw_only=True):
    """Where a listener of ours can be reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """ValueError where `text` is not HOST:PORT with a port that there can be; port 0 is any free one."""
        host, _, port = text.strip().rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or int(port) > LAST_PORT:
            raise ValueError(f"{text!r} is not HOST:PORT with a port of at most {LAST_PORT}")
        return cls(host=host, port=int(port))

    @classmethod
    def is_one(cls, text: str) -> bool:
        try:
            cls.parse(text)
        except ValueError:
            return False
        return True
