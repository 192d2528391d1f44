"""Options of the Ray Serve application: the server's settings, replicas and resources."""

from math import ceil
from typing import Annotated, Self

from pydantic import Field, model_validator

from comln_serve.configuration.settings import Positive, Settings
from comln_serve.configuration.sources import Configuration

_SQLITE = "sqlite:///"


class Options(Configuration):
    """The server's settings and those below; each is an argument of `build` or a variable COMLN_*.
    A file on the machine that runs `build` may hold the server's settings.

    Replicas start in folders that Ray chooses, on any machine, so paths must be absolute.
    `gpus_per_replica` determines `provider`. Ray Serve listens, drains and writes log files, so
    `host`, `port` and `drain_delay_seconds` have no effect; `workers` and TLS are refused.
    """

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

    @model_validator(mode="after")
    def _absolute_paths(self) -> Self:
        if self.models_dir is not None and not self.models_dir.is_absolute():
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

    @model_validator(mode="after")
    def _what_the_plain_server_does(self) -> Self:
        """Whoever asks for processes or for TLS must not be left without."""
        if self.tls_certificate is not None or self.tls_key is not None:
            raise ValueError("tls_certificate and tls_key are the plain server's; let a proxy before Ray Serve end TLS")
        if self.workers != 1:
            raise ValueError("workers is the plain server's; set api_replicas and embedding_replicas")
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
