"""Which environment variables COMLN_* there are; any other is refused, as an unknown flag is."""

import os
import re
from difflib import get_close_matches

from comln_serve.errors import StartupError
from comln_serve.settings import Settings

_PREFIX = "COMLN_"

# Options of the Ray Serve application that the server does not have. They are no mistake where
# `comln-serve keys` runs in the environment that the application was built in. To read them from
# there would import Ray; a test compares.
OF_RAY = (
    "embedding_replicas",
    "api_replicas",
    "gpus_per_replica",
    "cpus_per_embedding_replica",
    "cpus_per_api_replica",
)
_KNOWN = (*Settings.model_fields, "config", *OF_RAY)

# Kubernetes tells every pod of the Services in its namespace, unless the pod says
# `enableServiceLinks: false`: a Service "comln-serve" sets COMLN_SERVE_SERVICE_HOST, and so on.
# Nobody chose these variables, so they must not keep a server from starting. They begin with the
# Service's name, here any that begins with "comln"; without more it is COMLN itself.
_OF_A_SERVICE = re.compile(
    r"COMLN_(?:[A-Z0-9_]+_)?"
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?"
    r"|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
# <SERVICE>_PORT holds an address. With a number, COMLN_HTTP_PORT=80 is somebody's mistake.
_PORT_OF_A_SERVICE = re.compile(r"COMLN_[A-Z0-9_]+_PORT=(?:tcp|udp|sctp)://.*")


def check_variables() -> None:
    """Refuse variables COMLN_* that nobody reads. Upper and lower case are one, as in reading.

    Raises:
        StartupError: there are some; it names the nearest known ones. Their values, which may be
            passwords, are not shown.
    """
    unknown = [
        name
        for name, value in sorted(os.environ.items())
        if name.upper().startswith(_PREFIX)
        and name.upper().removeprefix(_PREFIX).lower() not in _KNOWN
        and not _is_of_a_service(name, value)
    ]
    if unknown:
        raise StartupError("; ".join(map(_problem, unknown)))


def _is_of_a_service(name: str, value: str) -> bool:
    return bool(_OF_A_SERVICE.fullmatch(name) or _PORT_OF_A_SERVICE.fullmatch(f"{name}={value}"))


def _problem(name: str) -> str:
    near = get_close_matches(name.upper().removeprefix(_PREFIX).lower(), _KNOWN)
    proposal = "the nearest are" if near else "allowed are"
    names = ", ".join(f"{_PREFIX}{known.upper()}" for known in near or _KNOWN)
    return f"{name}: there is no such variable; {proposal} {names}. Correct or unset it"
