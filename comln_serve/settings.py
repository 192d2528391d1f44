"""Every setting of the server, declared once: flag, environment variable and documentation."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

Provider = Literal["auto", "cuda", "cpu"]
Port = Annotated[int, Field(ge=0, le=65535)]
Positive = Annotated[int, Field(ge=1)]


class Settings(BaseSettings):
    """Configuration of `comln-serve`.

    Each field is the flag `--field-name` and the environment variable `COMLN_FIELD_NAME`; the flag
    wins. `docs/settings.md` is generated from the descriptions.
    """

    model_config = SettingsConfigDict(env_prefix="COMLN_", frozen=True, extra="forbid")

    models_dir: Path = Field(Path("models"), description="Folder of model bundles.")
    default_model: str | None = Field(
        None,
        description="Model of an adapt request that names none. Default: omniglot-conv4 if there, "
        "else the first by name.",
    )
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: Port = Field(8000, description="TCP port to listen on; 0 picks a free one.")
    database_url: str = Field(
        "sqlite:///comln-serve.db",
        description="Where classifiers are kept: sqlite:///FILE, relative to the working folder, "
        "or sqlite:////absolute/FILE.",
    )
    provider: Provider = Field(
        "auto",
        description="Where embeddings are computed: cuda (refuses to start if CUDA does not run), "
        "cpu, or auto (CUDA where it runs).",
    )
    inference_threads: Positive | None = Field(
        None, description="Threads of one inference on CPU. Default: the CPUs usable."
    )
    decode_threads: Positive | None = Field(
        None, description="Images decoded at the same time. Default: the CPUs usable."
    )
    max_images: Positive = Field(512, description="Images in one request.")
    max_image_bytes: Positive = Field(16 * 2**20, description="Bytes of one image file.")
    max_image_pixels: Positive = Field(64_000_000, description="Width x height of one image.")
    max_body_bytes: Positive = Field(128 * 2**20, description="Bytes of one request body.")
    max_label_length: Positive = Field(256, description="Characters of one label.")
    max_pending_images: Positive = Field(
        2048,
        description="Images being worked on or waiting, over all requests; more are answered 429.",
    )
    max_pending_requests: Positive = Field(
        64,
        description="Adapt and predict requests being received or worked on; more are answered "
        "429.",
    )
    shutdown_seconds: Positive = Field(
        30, description="Time given to requests under way after SIGTERM."
    )
    log_level: str = Field(
        "info",
        pattern="^(debug|info|warning|error)$",
        description="debug, info, warning or error.",
    )

    @model_validator(mode="after")
    def _one_request_fits(self) -> Self:
        if self.max_images > self.max_pending_images:
            raise ValueError(
                f"max_images ({self.max_images}) must not exceed max_pending_images "
                f"({self.max_pending_images}): such a request could never be admitted"
            )
        return self
