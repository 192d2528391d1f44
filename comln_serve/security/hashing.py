"""Secrets: how they are kept, and compared.

SHA-256 is enough here. Slow hashes make guessing what people think up expensive; these secrets are
256 random bits, and nobody guesses those, however fast a guess is.
"""

import hashlib
import hmac

# What the secret of a key that does not exist is compared with: the hash of no secret.
_NOTHING = "0" * 64


def hashed(secret: str) -> str:
    """What is kept of a secret: 64 hexadecimal digits."""
    return hashlib.sha256(secret.encode("ascii")).hexdigest()


def is_right(secret: str, secret_sha256: str | None) -> bool:
    """Whether a secret is the one that was hashed; None, of a key that does not exist, never is.

    It takes as long for a wrong secret as for the right one, and for no key as for any.
    """
    return hmac.compare_digest(hashed(secret), secret_sha256 or _NOTHING)
