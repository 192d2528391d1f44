"""Options of the Ray Serve application: the server's settings, replicas and resources."""

from math import ceil
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource

from comln_serve.configuration.settings import Positive, Settings
from comln_serve.configuration.sources import read_file
from comln_serve.configuration.variables import check_variables

_SQLITE = "sqlite:///"


class Options(Settings):
    """The server's settings and those below; each is an argument of `build` or a variable COMLN_*.

    As for the plain server, a file may hold the settings, and unknown variables are refused.

    Replicas start in folders that Ray chooses, on any machine, so paths must be absolute.
    `gpus_per_replica` determines `provider`. Ray Serve listens, drains and writes log files, so
    `host`, `port` and `drain_delay_seconds` have no effect.
    """

    config: Path | None = Field(
        None, description="The server's configuration file, TOML, on the machine that runs `build`."
    )
    embedding_replicas: Positive = Field(1, description="Replicas that embed images.")
    api_replicas: Positive = Field(1, description="Replicas that answer HTTP, decode images and adapt.")
    gpus_per_replica: Annotated[float, Field(ge=0)] = Field(
        0.0,
        description="GPUs of an embedding replica: 1, a fraction for replicas that share one, or 0 to embed on CPUs.",
    )
    cpus_per_embedding_replica: Annotated[float, Field(gt=0)] = Field(
        1.0, description="CPUs Ray reserves for an embedding replica."
    )
    cpus_per_api_replica: Annotated[float, Field(gt=0)] = Field(
        1.0, description="CPUs Ray reserves for an API replica."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read arguments, variables and the file that these name; the first of them wins.

        Raises:
            StartupError: a variable does not exist, or the file cannot be read.
        """
        check_variables()
        path = init_settings().get("config", env_settings().get("config"))
        file = InitSettingsSource(settings_cls, read_file(Path(path)) if path else {})
        # No values come from the last two sources.
        return init_settings, env_settings, file, dotenv_settings, file_secret_settings

    @model_validator(mode="after")
    def _absolute_paths(self) -> Self:
        if not self.models_dir.is_absolute():
            raise ValueError(
                f"models_dir must be an absolute path, the same on every machine, got {str(self.models_dir)!r}"
            )
        url = self.database_url
        if url.startswith(_SQLITE) and not url.startswith(f"{_SQLITE}/"):
            raise ValueError(
                f"database_url must be sqlite:////absolute/FILE, got {url!r}; replicas on several "
                "machines need postgresql://"
            )
        return self

    @property
    def embedding_settings(self) -> Settings:
        """The settings of an embedding replica."""
        return self._settings(
            provider="cuda" if self.gpus_per_replica else "cpu",
            inference_threads=self.inference_threads or ceil(self.cpus_per_embedding_replica),
        )

    @property
    def api_settings(self) -> Settings:
        """The settings of an API replica."""
        return self._settings(decode_threads=self.decode_threads or ceil(self.cpus_per_api_replica))

    def _settings(self, **changes: object) -> Settings:
        known = {name: getattr(self, name) for name in Settings.model_fields}
        return Settings.model_validate({**known, **changes})
