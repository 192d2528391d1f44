"""Says on standard error why the server does not start."""

import sys

from comln_serve.configuration.settings import without_password


def refuse(error: Exception, hide: str | None = None) -> int:
    """Print an error, with the password of the URL `hide` masked. Returns the exit status, 2."""
    text = str(error) if hide is None else str(error).replace(hide, without_password(hide))
    print(f"comln-serve: {text}", file=sys.stderr, flush=True)
    return 2
