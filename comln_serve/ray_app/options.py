"""What can be said of the Ray Serve application: the server's settings and how it is spread."""

from math import ceil
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource

from comln_serve.configuration import read_file
from comln_serve.settings import Positive, Settings
from comln_serve.variables import check_variables

_SQLITE = "sqlite:///"


class Options(Settings):
    """The server's settings and these; each is an argument of `build` or a variable COMLN_*.

    As for the plain server, a file may hold its settings, and an unknown variable is refused.

    Replicas start in folders of Ray's own, on any machine: paths are absolute. `provider` follows
    from `gpus_per_replica`; `host`, `port`, `cors_origins` and `allowed_hosts` excepted, what the
    process around the plain server does is Ray Serve's business: listening, draining, log files.
    """

    config: Path | None = Field(
        None, description="Configuration file, TOML, as of the server, where `build` runs."
    )
    embedding_replicas: Positive = Field(1, description="Replicas that embed images.")
    api_replicas: Positive = Field(
        1, description="Replicas that answer HTTP, decode images and adapt."
    )
    gpus_per_replica: Annotated[float, Field(ge=0)] = Field(
        0.0,
        description="GPUs of an embedding replica: 1, a fraction for replicas that share one, or 0 "
        "to embed on CPUs.",
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
        """Arguments, variables, the file that these name; the first that has a setting wins.

        Raises:
            StartupError: a variable that does not exist, or a file that cannot be read.
        """
        check_variables()
        path = init_settings().get("config", env_settings().get("config"))
        file = InitSettingsSource(settings_cls, read_file(Path(path)) if path else {})
        # Of the last two kinds there are none.
        return init_settings, env_settings, file, dotenv_settings, file_secret_settings

    @model_validator(mode="after")
    def _absolute_paths(self) -> Self:
        if not self.models_dir.is_absolute():
            raise ValueError(
                f"models_dir must be an absolute path, the same on every machine, got "
                f"{str(self.models_dir)!r}"
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
        """The settings an embedding replica works by."""
        return self._settings(
            provider="cuda" if self.gpus_per_replica else "cpu",
            inference_threads=self.inference_threads or ceil(self.cpus_per_embedding_replica),
        )

    @property
    def api_settings(self) -> Settings:
        """The settings an API replica works by."""
        return self._settings(decode_threads=self.decode_threads or ceil(self.cpus_per_api_replica))

    def _settings(self, **changes: object) -> Settings:
        known = {name: getattr(self, name) for name in Settings.model_fields}
        return Settings.model_validate({**known, **changes})
