"""Standard output and error of the commands."""

import sys
from io import TextIOWrapper


def write_utf8() -> None:
    """Write UTF-8, and lines as they are, to what is no terminal, as Python does by itself from 3.15 on.

    On Windows, Python would refuse labels that the system's 8-bit encoding has no characters for, and put another
    carriage return before the end of each line of a table.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and not stream.isatty():
            stream.reconfigure(encoding="utf-8", errors=stream.errors, newline="\n")
