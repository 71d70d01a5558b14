"""TLS and its certificates.

`make_certificate`: a certificate that lives as long as its process. It is made in memory, and the handshake proves
that it is the server's own.

The standard library speaks TLS but cannot make keys; `cryptography` can, and is needed only where this is asked for.

`Tls`: TLS for control, data and rendezvous connections: off, with ephemeral certificates, or with the user's own.

Certificates do not identify a peer. The handshake inside proves the secret over the server's certificate, so an
ephemeral one needs no authority and nothing has to be distributed beside the secret. With own certificates both
sides are verified against ca.pem as well. TLS 1.3 only.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from deadpool.errors import ConfigError, WireError

_LIFE = datetime.timedelta(days=3650)  # it ends with the process; peers compare the bytes and ignore the date
_CLOCKS_DIFFER = datetime.timedelta(days=1)


def make_certificate() -> bytes:
    """A fresh P-256 key and its self-signed certificate, as PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise ConfigError(
            "tls='ephemeral' needs the package cryptography: pip install 'torch-deadpool[tls]', "
            "or give a folder with cert.pem, key.pem and ca.pem"
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "deadpool")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - _CLOCKS_DIFFER).not_valid_after(now + _LIFE)
    certificate = builder.sign(key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)


OFF = "off"
EPHEMERAL = "ephemeral"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    client: ssl.SSLContext
    server: ssl.SSLContext | None = None  # None: this process only asks
    certificate: bytes = b""  # the server's own, as DER

    @property
    def carrier(self) -> bytes:
        """What our clients see of us; for the proof."""
        return fingerprint(self.certificate)


def load_tls(mode: str, *, serving: bool) -> Tls | None:
    """`mode`: off, ephemeral, or a folder with cert.pem, key.pem and ca.pem. None where it is off."""
    if mode == OFF:
        return None
    if mode == EPHEMERAL:
        return _ephemeral(serving)
    if not mode:
        raise ConfigError("tls='' cannot be used: give off, ephemeral, or a folder with cert.pem, key.pem and ca.pem")
    return _own(Path(mode))


def settled(mode: str) -> str:
    """The same for a process that works in another folder."""
    return mode if mode in (OFF, EPHEMERAL) else str(Path(mode).resolve())


def fingerprint(certificate: bytes) -> bytes:
    return hashlib.sha256(certificate).digest()


def carrier_of_server(connection: ssl.SSLObject | ssl.SSLSocket) -> bytes:
    """What a client sees of the server it has reached."""
    certificate = connection.getpeercert(binary_form=True)
    if not certificate:
        raise WireError("the server showed no certificate")
    return fingerprint(certificate)


def _ephemeral(serving: bool) -> Tls:
    client = _context(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE  # the proof of the secret covers the certificate's fingerprint
    if not serving:
        return Tls(client=client)
    pem = make_certificate()
    server = _context(ssl.PROTOCOL_TLS_SERVER)
    _load_from_memory(server, pem)
    return Tls(client=client, server=server, certificate=_der(pem.decode()))


_FILES = ("cert.pem", "key.pem", "ca.pem")


def _own(folder: Path) -> Tls:
    if missing := [name for name in _FILES if not (folder / name).is_file()]:  # ssl does not say which one
        raise ConfigError(
            f"tls={str(folder)!r} cannot be used: it has no {', no '.join(missing)}. Give off, ephemeral, or a folder "
            f"with {', '.join(_FILES)}"
        )
    try:
        client, server = _verifying(ssl.PROTOCOL_TLS_CLIENT, folder), _verifying(ssl.PROTOCOL_TLS_SERVER, folder)
        return Tls(client=client, server=server, certificate=_der((folder / "cert.pem").read_text()))
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise ConfigError(
            f"tls={str(folder)!r} cannot be used: give off, ephemeral, or a folder with cert.pem, key.pem and ca.pem "
            f"({error})"
        ) from error


def _verifying(protocol: int, folder: Path) -> ssl.SSLContext:
    """Names are not compared: nodes are reached by address, and the secret says whether a peer is of this job."""
    context = _context(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(folder / "ca.pem")
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # no session is ever resumed
    return context


def _load_from_memory(context: ssl.SSLContext, pem: bytes) -> None:
    """Python reads keys from files only; this one is in no file system."""
    descriptor = os.memfd_create("deadpool-key", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")


def _der(pem: str) -> bytes:
    begin = pem.index(ssl.PEM_HEADER)  # ValueError where there is none
    end = pem.index(ssl.PEM_FOOTER, begin) + len(ssl.PEM_FOOTER)
    return ssl.PEM_cert_to_DER_cert(pem[begin:end])
