"""Names that outlive messages, where ranks sit, and the kinds of values that travel.

`Generation` and `Version`: Generations and versions, the names of things that outlive messages. Values only.

A version number alone never identifies state: a job that rolled back computes version v a second time, and the two
are different objects. So state is named by the generation that computed it *and* its number, everywhere.

The two kinds of values that travel between processes: messages, and the values inside them.

Both are msgspec Structs, because msgspec then checks every field of what arrives against its declared type while it
reads the bytes, and makes nothing else from them (wire/codec.py). On the wire a value is the list of its fields in
the order in which the class names them; a message puts its class name before them. Values are immutable, as
everything is that two processes or two cores share. `msgspec.structs.replace` makes a changed one.

The garbage collector does not look at values (`gc=False`): what is immutable from the start is part of no cycle, and
a coordinator of thousands of nodes keeps a million of them.

`Layout`, `Schedule` and `Address`: where ranks sit: pure functions of positions, never of node names. Where copies
go is in coordinator/recovery/placement.py.

A position is a place for a node in the job's layout; it outlives the node that fills it.
"""

from __future__ import annotations

import msgspec


class Value(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A value that travels inside messages only: the field that holds it says which class it is."""


class Message(Value, frozen=True, tag=True):
    """A value that is sent by itself: its class name travels with it, since the receiver cannot know what comes."""


class FeatureMessage(Message, frozen=True):
    """A message that only an optional feature has a use for. Cores hand it to the features, and nothing follows where
    that feature is missing."""


class FreeFormMessage(Message, frozen=True):
    """A message with fields that declare `Any`. The codec checks that they hold plain values all the way down: None,
    bool, int, float, str, bytes, and lists and dicts of them."""


class Generation(Value, frozen=True, order=True):
    """One assignment of ranks to nodes. The coordinator's term orders first, so that a deposed coordinator cannot name
    a newer generation than its successor (rule 2, generations are ordered by term)."""

    term: int
    n: int

    def next(self, term: int) -> Generation:
        """The next one, under a coordinator of that term."""
        return Generation(term, self.n + 1)

    def __str__(self) -> str:
        return f"{self.term}.{self.n}"

    @property
    def is_founding(self) -> bool:
        """The first of a job: its plan needs no fence, because no node holds a rank yet."""
        return self.n == FOUNDING


FOUNDING = 1
NO_GENERATION = Generation(0, 0)


class Version(Value, frozen=True):
    """State after `number` completed steps; `generation` is the one in which the last of them was computed."""

    generation: Generation
    number: int

    def __hash__(self) -> int:
        """Equal to the generated one, in one call: versions are keys of large dictionaries."""
        return hash((self.generation.term, self.generation.n, self.number))

    def __str__(self) -> str:
        return f"v{self.number}@{self.generation}"


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
LEFT_OUT_RARELY = 1021  # likewise, once it is known that captures cost less than they may
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
