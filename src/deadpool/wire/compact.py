"""Lists that come by the thousand at every loss: what their items share is said once. Part of the schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deadpool.errors import WireError
from deadpool.protocol.identity import Version
from deadpool.protocol.lots import InLots, Lot, Squad, lots_of, squads_of
from deadpool.protocol.messages import Copy, Live, RankOrder
from deadpool.protocol.seal import Extent, Geometry

Step = Callable[[Any], Any]


class Compact:
    """With the schema's own steps for the records inside, which may be made later."""

    def __init__(self, packers: Mapping[type, Step], unpackers: Mapping[type, Step]) -> None:
        self._packers, self._unpackers = packers, unpackers

    def steps(self) -> dict[Any, tuple[Step, Step]]:
        """To plain values and back, by the type of the field."""
        return {
            tuple[Copy, ...]: (self._pack_copies, self._unpack_copies),
            tuple[Live, ...]: (self._pack_lives, self._unpack_lives),
            Sequence[RankOrder]: (self._pack_orders, self._unpack_orders),
        }

    # --- copies ------------------------------------------------------------------------------------------------------

    def _pack_copies(self, copies: Any) -> list[Any]:
        version, extent, geometry = (self._packers[each] for each in (Version, Extent, Geometry))
        return [
            [version(lot.version), extent(lot.extent), geometry(lot.geometry), *_plain_fields(lot)]
            for lot in lots_of(copies)
        ]

    def _unpack_copies(self, value: Any) -> InLots[Copy]:
        return InLots(tuple([self._unpack_lot(each) for each in _listed(value)]))

    def _unpack_lot(self, value: Any) -> Lot:
        if type(value) is not tuple or len(value) != 7 or type(value[3]) is not bool:
            raise WireError("not copies of a version")
        version, extent, geometry, full, peers, ranks, digests = value
        if len(_numbers(digests)) != 3 * len(_numbers(ranks)):
            raise WireError("not three digests for each copy")
        unpackers = self._unpackers
        return Lot(
            unpackers[Version](version),
            unpackers[Extent](extent),
            unpackers[Geometry](geometry),
            full,
            _numbers(peers),
            ranks,
            digests,
        )

    # --- live states -------------------------------------------------------------------------------------------------

    def _pack_lives(self, lives: Any) -> list[Any]:
        version = self._packers[Version]
        return [[squad.version and version(squad.version), squad.clean, squad.ranks] for squad in squads_of(lives)]

    def _unpack_lives(self, value: Any) -> InLots[Live]:
        return InLots(tuple([self._unpack_squad(each) for each in _listed(value)]))

    def _unpack_squad(self, value: Any) -> Squad:
        if type(value) is not tuple or len(value) != 3 or type(value[1]) is not bool:
            raise WireError("not ranks at a version")
        version, clean, ranks = value
        if not _numbers(ranks):
            raise WireError("nobody at a version")
        return Squad(None if version is None else self._unpackers[Version](version), clean, ranks)

    # --- orders ------------------------------------------------------------------------------------------------------

    def _pack_orders(self, orders: Any) -> list[Any]:
        """Most ranks stay as they are: of those only the number."""
        if isinstance(orders, InLots):
            return orders.ranks
        pack = self._packers[RankOrder]
        return [order.rank if order.keep and not order.fetch and not order.pushes else pack(order) for order in orders]

    def _unpack_orders(self, value: Any) -> tuple[RankOrder, ...]:
        unpack = self._unpackers[RankOrder]
        return tuple(
            [RankOrder(rank=each, keep=True) if type(each) is int else unpack(each) for each in _listed(value)]
        )


def _plain_fields(lot: Lot) -> tuple[Any, ...]:
    return lot.full, lot.peers, lot.ranks, lot.digests


_NUMBERS = frozenset({int, bool})


def _numbers(value: Any) -> tuple[int, ...]:
    if type(value) is not tuple or not _NUMBERS.issuperset(map(type, value)):
        raise WireError("not a list of numbers")
    return value


def _listed(value: Any) -> tuple[Any, ...]:
    if type(value) is not tuple:
        raise WireError("not a list")
    return value
