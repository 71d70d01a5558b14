"""Everything that takes bytes from a socket, as functions that may be given any bytes. They refuse by WireError only.

Hypothesis drives them in the suite (test_fuzz.py), and atheris with coverage as its guide (`scripts/fuzz`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from msgspec.structs import replace

from deadpool.control.agent.rendezvous import RendezvousServer, _request
from deadpool.errors import WireError
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import (
    ALL,
    Ask,
    Copy,
    Fence,
    FenceAck,
    Heartbeat,
    Inventory,
    Live,
    Lives,
    NodeCopies,
    Order,
    Report,
)
from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import Digest, Extent, Geometry, Seal
from deadpool.snapshot.arena.checksums import PieceDigests
from deadpool.snapshot.arena.slot import pack_seal
from deadpool.snapshot.erasure.parity_frames import (
    ParityDescription,
    ParityName,
    pack_contribution,
    pack_name,
    unpack_contribution,
    unpack_name,
)
from deadpool.snapshot.erasure.parity_slot import Contribution
from deadpool.snapshot.transfer.frames import (
    BODY_LIMIT_BYTES,
    CHUNK_BYTES,
    HEAD_BYTES,
    Kind,
    pack_frame,
    read_seal_field,
    unpack_body,
    unpack_chunk,
    unpack_geometry,
    unpack_head,
)
from deadpool.wire.codec import LIMIT_BYTES, Framer, decode, encode, frame
from deadpool.wire.credentials import Credentials
from deadpool.wire.handshake import PROOF_BYTES, Handshake

_SECRET = b"the secret that no peer guesses"
_EXTENT = Extent(record_bytes=1 << 20, unique_bytes=64 << 20, replica_bytes=0)
_DIGEST = Digest(record=1, unique=2, replica=3)
_SEAL = Seal(rank=0, version=Version(Generation(1, 1), 4), extent=_EXTENT, digest=_DIGEST, full=True)
_GROUP = RankGroup(ranks=(0, 1), parities=1)
_PARITY = ParityName(group=_GROUP, member=1, version=_SEAL.version)
_CONTRIBUTION = Contribution(
    group=_GROUP,
    target=1,
    member=0,
    seal=_SEAL,
    geometry=Geometry(record_capacity=1 << 20, unique_bytes=64 << 20, replica_bytes=0),
    digests=PieceDigests(),
)


def codec(data: bytes) -> None:
    """A message that was made from any bytes is one of ours, and can be sent on as it is."""
    with contextlib.suppress(WireError):
        message = decode(data)
        assert type(message) in ALL
        assert decode(encode(message)) == message or message != message  # NaN


def framing(data: bytes) -> None:
    framer, middle = Framer(), len(data) // 2
    with contextlib.suppress(WireError):
        payloads = [payload for part in (data[:middle], data[middle:]) for payload in framer.feed(part)]
        assert all(len(payload) <= LIMIT_BYTES for payload in payloads)
        assert b"".join(frame(payload) for payload in payloads) == data[: sum(4 + len(p) for p in payloads)]


def handshake(data: bytes) -> None:
    """No peer without the secret is believed, in either role, whatever it sends."""
    for role in ("client", "server"):
        victim = Handshake(_SECRET, role, "control")
        rest = data
        with contextlib.suppress(WireError):
            while len(rest) >= victim.needed:
                part, rest = rest[: victim.needed], rest[victim.needed :]
                victim.feed(part)
        assert not victim.done


def transfer(data: bytes) -> None:
    if len(data) < HEAD_BYTES:
        return
    with contextlib.suppress(WireError):
        head = unpack_head(data[:HEAD_BYTES])
        assert head.body_bytes <= BODY_LIMIT_BYTES and head.payload_bytes <= CHUNK_BYTES
        body = unpack_body(data[HEAD_BYTES : HEAD_BYTES + head.body_bytes])
        for unpack in (
            lambda values: [read_seal_field(each) for each in values],
            unpack_geometry,
            lambda values: unpack_chunk(values, _EXTENT),
            unpack_contribution,
            unpack_name,
            lambda values: ParityDescription(_PARITY, values).payload_bytes,
        ):
            with contextlib.suppress(WireError):
                unpack(body)


def rendezvous(data: bytes) -> None:
    async def ask() -> None:
        server = RendezvousServer(Credentials(_SECRET))
        with contextlib.suppress(WireError, TimeoutError):
            async with asyncio.timeout(0.001):  # waiting for a key is no refusal
                await server._answer(*_request(data))

    asyncio.run(ask())


def _fence_ack() -> FenceAck:
    geometry = Geometry(record_capacity=9, unique_bytes=9, replica_bytes=9)
    copies = NodeCopies.of(Copy(seal=seal, geometry=geometry) for seal in (_SEAL, replace(_SEAL, rank=1)))
    lives = Lives.of(Live(rank=rank, version=_SEAL.version, clean=True) for rank in (0, 1))
    return FenceAck(generation=Generation(1, 2), inventory=Inventory(live=lives, own=copies, held=copies))


TARGETS: dict[str, Callable[[bytes], None]] = {
    "codec": codec,
    "framing": framing,
    "handshake": handshake,
    "transfer": transfer,
    "rendezvous": rendezvous,
}

SEEDS: dict[str, list[bytes]] = {
    "codec": [
        encode(Fence(generation=Generation(1, 2), cause="fault-1")),
        encode(Ask(what="status", arguments={"a": [1, 2.5, None]})),
        encode(Report(records=({"what": "fault", "detail": {"ranks": [1, 2]}},))),
        encode(Heartbeat(generation=Generation(1, 2), steps=((0, 7), (1, 7)))),
        encode(Order(term=1, message=Fence(generation=Generation(1, 2), cause="fault-1"))),
        encode(_fence_ack()),
    ],
    "framing": [frame(b"one") + frame(b"two")],
    "handshake": [Handshake(_SECRET, "client", "control").opening() + bytes(PROOF_BYTES)],
    "transfer": [
        pack_frame(Kind.PULL, Generation(1, 2), [3, 1, 2, 7]),
        pack_frame(Kind.FOUND, Generation(1, 2), [pack_seal(_SEAL)]),
        pack_frame(Kind.CONTRIBUTE, Generation(1, 2), pack_contribution(_CONTRIBUTION)),
        pack_frame(Kind.DESCRIBE, Generation(1, 2), pack_name(_PARITY)),
        pack_frame(Kind.DESCRIPTION, Generation(1, 2), [pack_contribution(_CONTRIBUTION)[:2]]),
    ],
    "rendezvous": [b"\x93\xa3set\xa1k\xc4\x01v", b"\x92\xa4wait\x91\xa1k", b"\x93\xa3add\xa1k\x05"],
}
