"""Reads environment variables COMLN_* and refuses unknown ones, as unknown flags are refused."""

import os
import re
from typing import Any

from pydantic_settings import BaseSettings, EnvSettingsSource

from comln_serve.configuration.settings import Settings
from comln_serve.unknown_names import refuse_unknown

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
# the Service: here "comln", or any name that begins with "comln-". Kubernetes sets <SERVICE>_PORT
# to a URL; with a number (COMLN_HTTP_PORT=80) it is a mistake.
_OF_A_SERVICE = re.compile(
    r"COMLN_(?:[A-Z0-9_]+_)?"
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?"
    r"|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)=.*"
    r"|COMLN_[A-Z0-9_]+_PORT=(?:tcp|udp|sctp)://.*",
    re.DOTALL,
)


def read_variables(settings: type[BaseSettings]) -> dict[str, Any]:
    """The values of `settings` in the environment. Ignores the case of the variables' names.

    Raises:
        StartupError: there are unknown variables COMLN_*.
    """
    unknown = {
        variable: name
        for variable, value in sorted(os.environ.items())
        if variable.upper().startswith(_PREFIX)
        and (name := variable[len(_PREFIX) :].lower()) not in _KNOWN
        and not _OF_A_SERVICE.fullmatch(f"{variable}={value}")
    }
    refuse_unknown(unknown, "variable", _KNOWN, lambda name: _PREFIX + name.upper())
    return dict(EnvSettingsSource(settings)())
