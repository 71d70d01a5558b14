"""Lists that come by the thousand at every loss: what their items share is said once. Part of the schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deadpool.errors import WireError
from deadpool.protocol.identity import Version
from deadpool.protocol.inventory_batches import (
    DIGEST_BYTES,
    Batch,
    InLots,
    LiveBatch,
    Make,
    batches_of,
    live_batches_of,
)
from deadpool.protocol.messages import Copy, Live, RankOrder
from deadpool.protocol.seal import Extent, Geometry
from deadpool.wire.sharing import Step, sharing


class Compact:
    """With the schema's own steps for the records inside, which may be made later."""

    def __init__(self, packers: Mapping[type, Step], unpackers: Mapping[type, Step]) -> None:
        self._packers, self._unpackers = packers, unpackers
        self._unpack_make = sharing(self._unpack_new_make)

    def steps(self) -> dict[Any, tuple[Step, Step]]:
        """To plain values and back, by the type of the field."""
        return {
            tuple[Copy, ...]: (self._pack_copies, self._unpack_copies),
            tuple[Live, ...]: (self._pack_lives, self._unpack_lives),
            tuple[RankOrder, ...]: (self._pack_orders, self._unpack_orders),
        }

    # --- copies ------------------------------------------------------------------------------------------------------

    def _pack_copies(self, copies: Any) -> list[Any]:
        return [[self._pack_make(lot.make), lot.ranks, lot.digests] for lot in batches_of(copies)]

    def _pack_make(self, make: Make) -> list[Any]:
        version, extent, geometry = (self._packers[each] for each in (Version, Extent, Geometry))
        return [version(make.version), extent(make.extent), geometry(make.geometry), make.full, make.peers]

    def _unpack_copies(self, value: Any) -> InLots[Copy]:
        return InLots(tuple([self._unpack_lot(each) for each in _listed(value)]))

    def _unpack_lot(self, value: Any) -> Batch:
        if type(value) is not tuple or len(value) != 3:
            raise WireError("not copies of a version")
        make, ranks, digests = value
        if type(digests) is not bytes or len(digests) != DIGEST_BYTES * len(_numbers(ranks)):
            raise WireError("not three digests for each copy")
        return Batch(self._unpack_make(make), ranks, digests)

    def _unpack_new_make(self, value: Any) -> Make:
        if type(value) is not tuple or len(value) != 5 or type(value[3]) is not bool:
            raise WireError("not what copies have in common")
        version, extent, geometry, full, peers = value
        unpackers = self._unpackers
        return Make(
            unpackers[Version](version),
            unpackers[Extent](extent),
            unpackers[Geometry](geometry),
            full,
            _numbers(peers),
        )

    # --- live states -------------------------------------------------------------------------------------------------

    def _pack_lives(self, lives: Any) -> list[Any]:
        version = self._packers[Version]
        return [
            [batch.version and version(batch.version), batch.clean, batch.ranks] for batch in live_batches_of(lives)
        ]

    def _unpack_lives(self, value: Any) -> InLots[Live]:
        return InLots(tuple([self._unpack_live_batch(each) for each in _listed(value)]))

    def _unpack_live_batch(self, value: Any) -> LiveBatch:
        if type(value) is not tuple or len(value) != 3 or type(value[1]) is not bool:
            raise WireError("not ranks at a version")
        version, clean, ranks = value
        if not _numbers(ranks):
            raise WireError("nobody at a version")
        return LiveBatch(None if version is None else self._unpackers[Version](version), clean, ranks)

    # --- orders ------------------------------------------------------------------------------------------------------

    def _pack_orders(self, orders: Any) -> list[Any]:
        """Most ranks stay as they are: of those only the number."""
        pack = self._packers[RankOrder]
        return [order.rank if order.keep and not order.fetch and not order.pushes else pack(order) for order in orders]

    def _unpack_orders(self, value: Any) -> tuple[RankOrder, ...]:
        unpack = self._unpackers[RankOrder]
        return tuple(
            [RankOrder(rank=each, keep=True) if type(each) is int else unpack(each) for each in _listed(value)]
        )


_NUMBERS = frozenset({int, bool})


def _numbers(value: Any) -> tuple[int, ...]:
    if type(value) is not tuple or not _NUMBERS.issuperset(map(type, value)):
        raise WireError("not a list of numbers")
    return value


def _listed(value: Any) -> tuple[Any, ...]:
    if type(value) is not tuple:
        raise WireError("not a list")
    return value
