"""Refuses unknown environment variables COMLN_*, as unknown flags are refused."""

import os
import re
from difflib import get_close_matches

from comln_serve.configuration.settings import Settings
from comln_serve.errors import StartupError

_PREFIX = "COMLN_"

# Options of the Ray Serve application that the server does not have. `comln-serve keys` may run in
# that application's environment. Repeated here, as an import would load Ray; a test compares.
OF_RAY = (
    "embedding_replicas",
    "api_replicas",
    "gpus_per_replica",
    "cpus_per_embedding_replica",
    "cpus_per_api_replica",
)
# What the client reads, which may run in the server's environment.
OF_CLIENT = ("url", "key")
_KNOWN = (*Settings.model_fields, "config", *OF_RAY, *OF_CLIENT)

# Kubernetes sets variables for every Service of the namespace in each pod, unless the pod has
# `enableServiceLinks: false`: a Service "comln-serve" sets COMLN_SERVE_SERVICE_HOST, and so on.
# No user chose these, so they must not keep a server from starting. They begin with the name of
# the Service: here "comln", or any name that begins with "comln-".
_OF_A_SERVICE = re.compile(
    r"COMLN_(?:[A-Z0-9_]+_)?"
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?"
    r"|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
# Kubernetes sets <SERVICE>_PORT to a URL. With a number (COMLN_HTTP_PORT=80) it is a mistake.
_PORT_OF_A_SERVICE = re.compile(r"COMLN_[A-Z0-9_]+_PORT=(?:tcp|udp|sctp)://.*")


def check_variables() -> None:
    """Refuse unknown variables COMLN_*. Ignores case, as reading the settings does.

    Raises:
        StartupError: names the unknown variables and the nearest known ones, but not their values,
            which may be passwords.
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
