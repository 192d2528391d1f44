"""Says on standard error why the server does not start."""

import sys

from comln_serve.configuration.settings import without_password
from comln_serve.errors import NotYetError


def refuse(error: Exception, hide: str | None = None) -> int:
    """Print an error, with the password of the URL `hide` masked. Returns the exit status: 1 if it may be over later,
    else 2.
    """
    text = str(error) if hide is None else str(error).replace(hide, without_password(hide))
    print(f"comln-serve: {text}", file=sys.stderr, flush=True)
    return 1 if isinstance(error, NotYetError) else 2
