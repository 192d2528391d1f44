"""Reads the settings from flags or arguments, variables and a file; the first of these wins."""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, CliImplicitFlag, CliSettingsSource, CliUnknownArgs, EnvSettingsSource

from comln_serve.configuration.settings import Settings, without_password
from comln_serve.errors import StartupError
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


class Configuration(Settings):
    """Settings from arguments, else from variables COMLN_*, else from the file that either names.

    pydantic-settings can merge these sources, too, but does not tell which one a value came from.
    """

    config: Path | None = Field(None, description="Configuration file, TOML.")
    _origins: Mapping[str, str] = PrivateAttr(default_factory=dict[str, str])

    def __init__(self, **arguments: Any) -> None:
        """Read the variables and the file, and check all values.

        Raises:
            StartupError: a value is not allowed, a name does not exist, or the file cannot be read.
        """
        known = type(self).model_fields
        refuse_unknown({self.spelled(name): name for name in arguments if name not in known}, "setting", known)
        variables = read_variables(type(self))
        path = arguments.get("config", variables.get("config"))
        file = read_file(Path(path)) if path else {}
        origins = {
            **dict.fromkeys(file, f"file {path}"),
            **{name: f"environment COMLN_{name.upper()}" for name in variables},
            **{name: self.spelled(name) for name in arguments},
        }
        try:
            super().__init__(**{**file, **variables, **arguments})
        except ValidationError as error:
            raise StartupError("; ".join(_problem(item, origins) for item in error.errors())) from error
        self._origins = origins

    @staticmethod
    def spelled(name: str) -> str:
        """An argument as its user knows it."""
        return f"argument {name}"

    @property
    def origins(self) -> Mapping[str, str]:
        """Where each value was found; a setting that is missing has its default."""
        return self._origins

    def text(self) -> str:
        """Every setting and its origin, as a configuration file; passwords are masked."""
        lines: list[str] = []
        for name, value in self.model_dump(mode="json", include=set(Settings.model_fields)).items():
            origin = self._origins.get(name, "default")
            if value is None:
                lines.append(f"# {name} is not set")
                continue
            shown = without_password(value) if name == "database_url" else value
            if shown != value:
                origin += ", its password masked"
            lines.append(f"{name} = {json.dumps(shown, ensure_ascii=False)}  # {origin}")
        return "\n".join(lines)


class Flags(
    Configuration,
    cli_avoid_json=True,
    cli_hide_none_type=True,
    cli_ignore_unknown_args=True,  # to name the nearest ones, which the library does not
    cli_kebab_case=True,
    cli_prog_name="comln-serve",
):
    """Few-shot adaptation server. A flag wins over the variable COMLN_<FLAG>, and that over the file's key.
    `comln-serve keys --help` tells how to make, list and revoke API keys; `comln-serve --version` prints the version.
    """

    print_config: CliImplicitFlag[bool] = Field(
        False, description="Show the settings in effect and where each comes from, and end."
    )
    unknown: CliUnknownArgs

    @staticmethod
    def spelled(name: str) -> str:
        return f"flag {_flag(name)}"


def read_configuration(arguments: list[str]) -> Flags:
    """The settings of a command line, the environment and the file that these name.

    Raises:
        StartupError: as `Configuration`; a flag does not exist.
        SystemExit: `--help`, or a flag lacks its value.
    """
    flags: dict[str, Any] = dict(CliSettingsSource(Flags, cli_parse_args=arguments)())
    words: list[str] = flags.pop("unknown")
    unknown = [word.partition("=")[0] for word in words if word.startswith("-")] or words[:1]
    known = [name for name in Flags.model_fields if name != "unknown"]
    refuse_unknown({word: word.lstrip("-") for word in unknown}, "flag", known, _flag)
    return Flags(**flags)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


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


def read_file(path: Path) -> dict[str, Any]:
    """Read a configuration file. Checks names and whether values are switches; `Settings` checks the rest.

    pydantic-settings would take a file that is not there for an empty one, and `true` for 1.

    Raises:
        StartupError: the file cannot be read, or holds something that is not a setting.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise StartupError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartupError(f"{path}: is not TOML: {error}") from error
    known = Settings.model_fields
    refuse_unknown({f"{path}, {name}": name for name in values if name not in known}, "setting", known)
    for name, value in values.items():
        is_switch = known[name].annotation is bool
        if isinstance(value, bool) != is_switch:
            allowed = "true or false" if is_switch else "a string or a number"
            raise StartupError(f"{path}, {name}: {allowed} is allowed, got {value!r}")
    return values


def _problem(item: ErrorDetails, origins: Mapping[str, str]) -> str:
    """One of Pydantic's errors as text."""
    problem = item["msg"].removeprefix("Value error, ")
    if not item["loc"]:  # an error of several settings together
        return problem
    name = str(item["loc"][0])
    where = f"{origins[name]}, {name}" if origins[name].startswith("file ") else origins[name]
    received = without_password(str(item["input"])) if name == "database_url" else item["input"]
    return f"{where}: {problem}, got {received!r}"
