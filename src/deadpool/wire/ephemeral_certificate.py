"""A certificate that lives as long as its process. It is made in memory, and the handshake proves that it is the
server's own.

The standard library speaks TLS but cannot make keys; `cryptography` can, and is needed only where this is asked for.
"""

from __future__ import annotations

import datetime

from deadpool.errors import ConfigError

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
