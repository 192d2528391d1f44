"""Reads the settings from flags, environment variables and a file; the first of these wins."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from pydantic_settings import CliImplicitFlag, CliSettingsSource, EnvSettingsSource

from comln_serve.configuration.settings import Settings, without_password
from comln_serve.configuration.variables import check_variables
from comln_serve.errors import StartupError

# Not settings of the server: flags (and COMLN_CONFIG) that control how this module reads settings.
_META = ("config", "print_config")


@dataclass(frozen=True)
class Configuration:
    """The settings in effect.

    Attributes:
        origins: where each setting's value was found; a setting that is missing has its default.
        print_config: whether to print the settings instead of serving.
    """

    settings: Settings
    origins: Mapping[str, str]
    print_config: bool = False

    def text(self) -> str:
        """Every setting and its origin, as a configuration file; passwords are masked."""
        lines: list[str] = []
        for name, value in self.settings.model_dump(mode="json").items():
            origin = self.origins.get(name, "default")
            if value is None:
                lines.append(f"# {name} is not set")
                continue
            shown = without_password(value) if name == "database_url" else value
            if shown != value:
                origin += ", its password masked"
            lines.append(f"{name} = {json.dumps(shown, ensure_ascii=False)}  # {origin}")
        return "\n".join(lines)


def read_configuration(arguments: list[str]) -> Configuration:
    """Merge the settings of flags, the environment and the file that these name.

    Raises:
        StartupError: a value is not allowed, a variable does not exist, or the file cannot be read.
        SystemExit: `--help`, or a flag does not exist.
    """
    flags: dict[str, Any] = dict(CliSettingsSource(_Flags, cli_parse_args=arguments)())
    check_variables()
    environment: dict[str, Any] = dict(EnvSettingsSource(_Flags)())
    path = flags.get("config", environment.get("config"))
    file = read_file(Path(path)) if path else {}
    # Later sources replace earlier ones.
    found = [(file, f"file {path}"), (environment, "environment"), (flags, "flag")]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for source, origin in found:
        for name, value in source.items():
            if name not in _META:
                values[name] = value
                origins[name] = f"{origin} {_spelled(name, origin)}".rstrip()
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        raise StartupError(_problems(error, origins)) from error
    return Configuration(settings, origins, str(flags.get("print_config")) == "True")


def read_file(path: Path) -> dict[str, Any]:
    """Read a configuration file. Checks names and types, not values.

    Raises:
        StartupError: the file cannot be read, or holds something that is not a setting.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartupError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartupError(f"{path}: is not TOML: {error}") from error
    for name, value in values.items():
        if name not in Settings.model_fields:
            raise StartupError(f"{path}: there is no setting {name!r}; allowed are {', '.join(Settings.model_fields)}")
        yes_or_no = Settings.model_fields[name].annotation is bool
        if isinstance(value, bool) != yes_or_no or not isinstance(value, str | int | float):
            allowed = "true or false" if yes_or_no else "a string or a number"
            raise StartupError(f"{path}, {name}: {allowed} is allowed, got {value!r}")
    return values


class _Flags(Settings, cli_kebab_case=True, cli_prog_name="comln-serve", cli_hide_none_type=True, cli_avoid_json=True):
    __doc__ = (
        "Few-shot adaptation server. Every setting is a flag, an environment variable COMLN_<FLAG> "
        "and a key of the configuration file; the first of these that is given wins. "
        "`comln-serve keys --help` tells how to make, list and revoke API keys; `comln-serve --version` "
        "prints the version."
    )

    config: Path | None = Field(None, description="Configuration file, TOML.")
    print_config: CliImplicitFlag[bool] = Field(
        False, description="Show the settings in effect and where each comes from, and end."
    )


def _spelled(name: str, origin: str) -> str:
    """The setting's name as a flag or variable; empty for a file, which uses the plain name."""
    if origin == "flag":
        return "--" + name.replace("_", "-")
    return f"COMLN_{name.upper()}" if origin == "environment" else ""


def _problems(error: ValidationError, origins: Mapping[str, str]) -> str:
    lines: list[str] = []
    for item in error.errors():
        problem = item["msg"].removeprefix("Value error, ")
        if not item["loc"]:  # an error of several settings together
            lines.append(problem)
            continue
        name = str(item["loc"][0])
        where = f"--{name.replace('_', '-')} (COMLN_{name.upper()})"
        if origins.get(name, "").startswith("file "):
            where = f"{origins[name].removeprefix('file ')}, {name}"
        received = item["input"]
        if name == "database_url":
            received = without_password(str(received))
        lines.append(f"{where}: {problem}, got {received!r}")
    return "; ".join(lines)
