"""Variables of the environment that are settings of the server."""

from collections.abc import Mapping

from comln_serve.configuration.settings import Settings

VARIABLES = {f"COMLN_{name.upper()}" for name in Settings.model_fields}


def settings_of(variables: Mapping[str, object]) -> Settings:
    """What a server is set to by these variables; those of other programs are left out."""
    own = {name: value for name, value in variables.items() if name.startswith("COMLN_")}
    return Settings.model_validate({name.removeprefix("COMLN_").lower(): value for name, value in own.items()})
