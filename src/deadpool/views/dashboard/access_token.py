"""The token that a page asks for: derived from the job's secret, from which nothing of the secret can be learned."""

from __future__ import annotations

import hashlib
import hmac

_PURPOSE = b"deadpool dashboard: may read"


def access_token(secret: bytes) -> str:
    return hmac.new(secret, _PURPOSE, hashlib.sha256).hexdigest()


def is_allowed(given: str, token: str) -> bool:
    """`given` is an Authorization header."""
    return hmac.compare_digest(given.encode(), f"Bearer {token}".encode())
