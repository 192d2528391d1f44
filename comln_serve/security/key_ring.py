"""Cache of API keys, so that not every request queries the database."""

from comln_serve.security.keys import ApiKey
from comln_serve.short_memory import ShortMemory


class KeyRing(ShortMemory[str, ApiKey]):
    """Keys by id. All servers refuse a revoked key after at most `seconds`."""

    seconds = 1.0
