"""Entry point of `comln`: checks for the client's packages, then runs the command."""

import sys
import warnings
from importlib import util

from comln_serve.streams import write_utf8

_NEEDED = ("click", "httpx2", "PIL", "tqdm")


def main() -> int:
    """Run the command. Returns 2 where packages of the extra `client` are missing."""
    write_utf8()
    missing = [name for name in _NEEDED if util.find_spec(name) is None]
    if missing:
        print(f'comln: {", ".join(missing)} not installed: pip install "comln-serve[client]"', file=sys.stderr)
        return 2
    from PIL import Image  # noqa: PLC0415 - needs what was looked for

    from comln_serve.client.commands import main as command  # noqa: PLC0415

    # Large images are shrunk before they are sent, and the server refuses what is too large.
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    command(prog_name="comln")
    return 0
