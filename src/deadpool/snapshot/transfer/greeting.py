"""Opens a stream between two agents: with TLS if the job uses it, then both sides prove that they know the secret."""

from __future__ import annotations

from deadpool.errors import VersionMismatch, WireError
from deadpool.snapshot.transfer.connection import Connection
from deadpool.wire.credentials import Credentials
from deadpool.wire.handshake import PLAIN, Handshake, Role
from deadpool.wire.tls import carrier_of_server


def authenticate(connection: Connection, credentials: Credentials, role: Role) -> None:
    """Raises WireError if the peer does not belong to this job, and ConnectionLost if it is too slow."""
    carrier = _encrypt(connection, credentials, role)
    handshake = Handshake(credentials.secret, role, "data", carrier)
    connection.send_raw(handshake.opening())
    while not handshake.done:
        data = bytearray(handshake.needed)
        connection.receive_into(memoryview(data))
        try:
            answer = handshake.feed(bytes(data))
        except VersionMismatch as error:
            connection.send_raw(error.last_words)
            raise VersionMismatch(f"{connection.peer} is refused: {error.found}") from error
        except WireError as error:
            raise WireError(f"{connection.peer} does not belong to this job: {error}") from error
        connection.send_raw(answer)


def _encrypt(connection: Connection, credentials: Credentials, role: Role) -> bytes:
    """Encrypts the connection if the job uses TLS. Returns the identity of its carrier, which the proof includes."""
    if credentials.tls is None:
        return PLAIN
    if role == "client":
        return carrier_of_server(connection.encrypt(credentials.tls.client, server_side=False))
    assert credentials.tls.server is not None, "a process that serves has a certificate"
    connection.encrypt(credentials.tls.server, server_side=True)
    return credentials.carrier
