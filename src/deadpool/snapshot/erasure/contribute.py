"""Adds a sealed slot of this node to a parity that another node keeps."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from deadpool.snapshot.erasure.parity_frames import pack_contribution
from deadpool.snapshot.erasure.parity_slot import Contribution
from deadpool.snapshot.transfer.client import SendRequest, TransferClient
from deadpool.snapshot.transfer.connection import Connection, Midway
from deadpool.snapshot.transfer.frames import Chunk, Kind
from deadpool.snapshot.transfer.session import TRANSFER_ID_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributeRequest(SendRequest):
    """A member of the slot's group is to add it to its parity, as far as that is concerned."""

    contribution: Contribution


def contribute(client: TransferClient, request: ContributeRequest, midway: Midway | None = None) -> int:
    """Returns when everything is in: how many bytes were sent for it.

    What is in already, from a contribution that broke off, is not sent again. Otherwise it is as TransferClient.push.
    """
    contribution, transfer = request.contribution, secrets.token_bytes(TRANSFER_ID_BYTES)
    digests = contribution.digests.pack(contribution.seal)
    with client.channel(request.address, request.generation) as channel:
        before = channel.bytes_sent
        channel.lead.send_list(Kind.CONTRIBUTE, [transfer, *pack_contribution(contribution)], digests)
        todo = _not_there(channel.lead, contribution)
        client.send_chunks(channel, transfer, request, todo, midway)
        return channel.bytes_sent - before


def _not_there(connection: Connection, contribution: Contribution) -> list[Chunk]:
    """The pieces that the peer does not have yet, by its answer."""
    pieces = [piece for _, piece in contribution.pieces()]
    frame = connection.expect(Kind.ACCEPT)
    there = connection.receive_list(frame, len(pieces)) if frame.head.payload_bytes else bytes(len(pieces))
    return [
        Chunk(region=piece.region, offset=piece.offset, size=piece.size)
        for piece, is_there in zip(pieces, there, strict=True)
        if not is_there
    ]
