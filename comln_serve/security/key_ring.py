"""Keys in use, so that not every request asks the database."""

from comln_serve.security.keys import ApiKey
from comln_serve.short_memory import ShortMemory


class KeyRing(ShortMemory[str, ApiKey]):
    """Keys by id. One that is revoked is worth nothing on any server after this time."""

    seconds = 1.0
