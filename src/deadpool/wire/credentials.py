"""What a process needs to be one of a job: the job's secret, and how connections are encrypted, if they are.

The secret is handed out through a file or the environment, never on a command line.

`Tls` encrypts control, data and rendezvous connections: off, with ephemeral certificates, or with the user's own. The
standard library speaks TLS but cannot make keys; `cryptography` can, and is needed only where this is asked for.
Certificates do not identify a peer. The handshake inside proves the secret over the server's certificate, so an
ephemeral one, which is made in memory and lives as long as its process, needs no authority, and nothing has to be
distributed beside the secret. With own certificates both sides are verified against ca.pem as well. TLS 1.3 only.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import ssl
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from deadpool.config.environment import SECRET_FILE_VARIABLE, SECRET_VARIABLE, TLS_VARIABLE
from deadpool.errors import ConfigError, WireError
from deadpool.wire.handshake import PLAIN

LEAST_BYTES = 16

_LIFE = datetime.timedelta(days=3650)  # it ends with the process; peers compare the bytes and ignore the date
_CLOCKS_DIFFER = datetime.timedelta(days=1)


class UnusableSecret(ConfigError):
    """There is no secret, or it is none that DeadPool reads."""

    def __init__(self, found: str, cure: str) -> None:
        super().__init__(f"{found}: {cure}")
        self.found, self.cure = found, cure


def secret_is_given() -> bool:
    return SECRET_VARIABLE in os.environ or SECRET_FILE_VARIABLE in os.environ


def read_secret(default: Path | None = None) -> bytes:
    """From the environment, from the file it names, or from `default`."""
    if SECRET_VARIABLE in os.environ:
        return _checked(os.environ[SECRET_VARIABLE].encode(), SECRET_VARIABLE)
    if os.environ.get(SECRET_FILE_VARIABLE) == "":
        raise ConfigError(f"{SECRET_FILE_VARIABLE} is empty: set it to a file that holds the job's secret, or unset it")
    path = Path(os.environ[SECRET_FILE_VARIABLE]) if SECRET_FILE_VARIABLE in os.environ else default
    if path is None:
        raise UnusableSecret("the job's secret is unknown", f"set {SECRET_FILE_VARIABLE} to a file that holds it")
    return _checked(_read_own(path), str(path))


@contextlib.contextmanager
def handed_over(secret: bytes) -> Iterator[int]:
    """A descriptor for a child that cannot rely on the secret's file: a pipe, which has the secret in it already."""
    ours, theirs = os.pipe()
    try:
        with os.fdopen(theirs, "wb") as pipe:
            pipe.write(secret)
        yield ours
    finally:
        os.close(ours)


def read_handed_over(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as pipe:
        return _checked(pipe.read(), f"descriptor {descriptor}")


def _read_own(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & stat.S_IRWXO:
                raise UnusableSecret(f"the job's secret in {path} is open to every user", "chmod 600 it")
            return file.read()
    except OSError as error:
        raise UnusableSecret(
            f"the job's secret cannot be read ({path}: {error.strerror})",
            f"set {SECRET_FILE_VARIABLE} to a file that this user can read, as `secret` in the job's run folder",
        ) from error


def _checked(secret: bytes, where: str) -> bytes:
    secret = secret.strip()  # an editor's last line break is not part of it
    if not secret:
        raise UnusableSecret(
            f"the job's secret in {where} is empty", "copy it from the file `secret` of the job's run folder"
        )
    if len(secret) < LEAST_BYTES:
        raise UnusableSecret(f"the job's secret in {where} is too short", f"give at least {LEAST_BYTES} characters")
    return secret


@dataclass(frozen=True, slots=True)
class Credentials:
    secret: bytes = field(repr=False)
    tls: Tls | None = None

    @property
    def carrier(self) -> bytes:
        """The carrier of the connections that this process serves."""
        return self.tls.carrier if self.tls is not None else PLAIN


def read_credentials(
    *, serving: bool = False, tls: str | None = None, default_secret: Path | None = None
) -> Credentials:
    """Reads those of this process's job; its environment is enough in a process that an agent or the launcher started.

    `serving` is for a process that also takes connections, as an agent and every coordinator does, the first as well as
    a successor on another node: ephemeral certificates are each process's own, so nothing is handed over in a takeover.
    `tls` is used instead of the environment's, `default_secret` where the environment names none.
    """
    mode = tls if tls is not None else os.environ.get(TLS_VARIABLE, OFF)
    return Credentials(read_secret(default_secret), load_tls(mode, serving=serving))


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
