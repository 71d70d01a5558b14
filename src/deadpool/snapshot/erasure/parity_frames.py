"""Coding groups, contributions and parities as fields of frames. Every value is checked before it is used.

CONTRIBUTE -> ACCEPT|REFUSED        asks to add to a parity; its payload are the digests of the sender's pieces.
                                    ACCEPT's payload says which are in, if any; then DATA, one each, and STORED|REFUSED
DESCRIBE -> DESCRIPTION|REFUSED     asks what a parity was made of; the payload are digests of pieces and rows
READ_ROW -> DATA|REFUSED            asks for one row
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from deadpool.errors import ArenaError, WireError
from deadpool.protocol.features.coding.stripes import ParityLayout, Place, parity_layout
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import Geometry, Seal, regions_sent
from deadpool.snapshot.arena.checksums import PieceDigests, packed_bytes, unpack_digests
from deadpool.snapshot.arena.slot import pack_seal
from deadpool.snapshot.erasure.parity_slot import Contribution, ParitySlot
from deadpool.snapshot.transfer.frames import naturals, pack_geometry, read_seal_field, unpack_geometry

_CODED_LIMIT_BYTES = 1 << 42


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityName:
    """Which parity: of which group, kept for which member, of which version."""

    group: RankGroup
    member: int
    version: Version


def pack_group(group: RankGroup) -> list[int]:
    return [group.parities, *group.ranks]


def unpack_group(values: Any) -> RankGroup:
    if not isinstance(values, list):
        raise WireError("expected a group")
    parities, *ranks = naturals(values, max(3, len(values)))
    try:
        return RankGroup(ranks=tuple(ranks), parities=parities)
    except ValueError as error:
        raise WireError(str(error)) from error


def pack_version(version: Version) -> list[int]:
    return [version.generation.term, version.generation.n, version.number]


def pack_name(name: ParityName) -> list[Any]:
    return [pack_group(name.group), name.member, *pack_version(name.version)]


def unpack_name(values: list[Any]) -> ParityName:
    if len(values) != 5:
        raise WireError("expected the name of a parity")
    group = unpack_group(values[0])
    member, term, n, number = naturals(values[1:], 4)
    if member >= group.size:
        raise WireError(f"a group of {group.size} has no member {member}")
    return ParityName(group=group, member=member, version=Version(Generation(term, n), number))


# --- contributions


def pack_contribution(contribution: Contribution) -> list[Any]:
    return [
        pack_seal(contribution.seal),
        pack_geometry(contribution.geometry),
        pack_group(contribution.group),
        contribution.member,
        contribution.target,
    ]


def unpack_contribution(values: list[Any]) -> Contribution:
    """Without its digests, which come as payload."""
    if len(values) != 5 or not isinstance(values[1], list):
        raise WireError("expected a contribution")
    seal, geometry, group = read_seal_field(values[0]), unpack_geometry(values[1]), unpack_group(values[2])
    member, target = naturals(values[3:], 2)
    _check_room(seal, geometry)
    return Contribution(group=group, member=member, target=target, seal=seal, geometry=geometry, digests=PieceDigests())


def _check_room(seal: Seal, geometry: Geometry) -> None:
    """A geometry without bounds would make pieces without end."""
    try:
        geometry.check(seal.extent, regions_sent(seal))
    except ArenaError as error:
        raise WireError(str(error)) from error
    if geometry.slot_bytes > _CODED_LIMIT_BYTES or (geometry.replica_bytes and not seal.full):
        raise WireError("the geometry is not of what is coded")


# --- what a parity was made of


def pack_parity(slot: ParitySlot) -> tuple[list[Any], bytes]:
    """The body and the payload of DESCRIPTION."""
    contributions, digests = slot.contributions, slot.digests
    assert digests is not None
    rooms = map(pack_geometry, slot.layout.geometries)
    body = [
        [pack_seal(each.seal), pack_geometry(each.geometry), room]
        for each, room in zip(contributions, rooms, strict=True)
    ]
    lists = [each.digests.pack(each.seal) for each in contributions]
    return body, b"".join([*lists, struct.pack(f"<{len(digests)}Q", *digests)])


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityContents:
    """What a node says of a parity that it keeps."""

    contributions: dict[int, Contribution]  # by member
    layout: ParityLayout
    digests: tuple[int, ...]  # of the rows of the layout

    def digests_by_place(self) -> dict[Place, int]:
        return {row.place: digest for row, digest in zip(self.layout.rows, self.digests, strict=True)}


class ParityDescription:
    """The body of DESCRIPTION, read before its payload: it says how long the payload is."""

    def __init__(self, name: ParityName, body: list[Any]) -> None:
        self._name = name
        self._members = name.group.others(name.member)
        if len(body) != len(self._members):
            raise WireError(f"a parity of {len(body)} members where {len(self._members)} were expected")
        self._parts = [self._part(member, values) for member, values in zip(self._members, body, strict=True)]
        rooms = tuple(_room(values[2], part) for values, part in zip(body, self._parts, strict=True))
        self._layout = parity_layout(name.group, name.member, rooms)

    def _part(self, member: int, values: Any) -> Contribution:
        if not isinstance(values, list) or len(values) != 3:
            raise WireError("expected a seal and two geometries")
        name, values = self._name, values[:2]
        part = unpack_contribution([*values, pack_group(name.group), member, name.member])
        if part.version != name.version:
            raise WireError(f"the peer's parity is of {part.version}, not of {name.version}")
        return part

    @property
    def payload_bytes(self) -> int:
        return sum(packed_bytes(part.seal) for part in self._parts) + 8 * len(self._layout.rows)

    def contents(self, payload: bytearray) -> ParityContents:
        """WireError if a list of digests does not belong to its seal."""
        contributions, start = {}, 0
        for part in self._parts:
            size = packed_bytes(part.seal)
            contributions[part.member] = with_digests(part, payload[start : start + size])
            start += size
        digests = struct.unpack_from(f"<{len(self._layout.rows)}Q", payload, start)
        return ParityContents(contributions=contributions, layout=self._layout, digests=digests)


def _room(packed: Any, part: Contribution) -> Geometry:
    """What the parity has room for: a snapshot of this member that may have been larger than the one that came."""
    room = unpack_geometry(packed)
    _check_room(part.seal, room)
    return room


def with_digests(contribution: Contribution, packed: bytearray) -> Contribution:
    """The contribution with the digests of its pieces; WireError if it cannot be one."""
    whole = Contribution(
        group=contribution.group,
        member=contribution.member,
        target=contribution.target,
        seal=contribution.seal,
        geometry=contribution.geometry,
        digests=unpack_digests(packed, contribution.seal),
    )
    problem = whole.mismatch()
    if problem is not None:
        raise WireError(problem)
    return whole
