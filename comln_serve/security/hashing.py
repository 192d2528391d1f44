"""Hashes and compares the secrets of keys.

SHA-256 is enough here: slow hashes protect passwords that people choose, but these secrets are 256
random bits, which cannot be guessed.
"""

import hashlib
import hmac

# Compared with the secret of an unknown key. No secret has this hash.
_NOTHING = "0" * 64


def hashed(secret: str) -> str:
    """SHA-256 of a secret, as 64 hexadecimal digits."""
    return hashlib.sha256(secret.encode("ascii")).hexdigest()


def is_right(secret: str, secret_sha256: str | None) -> bool:
    """Whether a secret has this hash. Always False for None, the hash of an unknown key.

    Takes the same time for right and wrong secrets and for unknown keys.
    """
    return hmac.compare_digest(hashed(secret), secret_sha256 or _NOTHING)
