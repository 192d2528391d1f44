"""Declares every setting of the server once, for its flag, environment variable, configuration file
key and documentation.
"""

import re
from pathlib import Path
from typing import Annotated, Literal, Self, cast

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, CliImplicitFlag, SettingsConfigDict

from comln_serve.imaging import DEFAULT_MAX_PIXELS, FORMATS, MOST_PIXELS, parse_formats
from comln_serve.logs import LogFormat
from comln_serve.machine import Provider

Port = Annotated[int, Field(ge=0, le=65535)]
Positive = Annotated[int, Field(ge=1)]
Duration = Annotated[float, Field(gt=0, le=3600)]

MOST_WORKERS = 128
MOST_PER_MINUTE = 10_000_000

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_ENDPOINT = re.compile(r"https?://[^\s/?#]+[^\s?#]*")
_HOST = re.compile(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]")


def _a_number_or_auto(value: object) -> object:
    """One message instead of one for each of the two types."""
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
    if number != "auto" and (type(number) is not int or not 1 <= number <= MOST_WORKERS):
        raise ValueError(f"must be a number from 1 to {MOST_WORKERS}, or auto")
    return number


def _separated(value: object) -> object:
    """A list of a configuration file, as the text that flags and variables give."""
    if isinstance(value, list) and all(isinstance(part, str) for part in cast("list[object]", value)):
        return ",".join(cast("list[str]", value))
    return value


def _an_endpoint(value: str | None) -> str | None:
    if value is not None and not _ENDPOINT.fullmatch(value):
        raise ValueError("must be http://host:port or https://host:port, a path may follow")
    return value


def _origins(value: str) -> str:
    origins = [origin.strip() for origin in value.split(",") if origin.strip()]
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ValueError(
                f"{origin!r} is not an origin: scheme://host or scheme://host:port, lower "
                "case, without a path or a slash at the end"
            )
    if "*" in origins and len(origins) > 1:
        raise ValueError("* allows every origin; give it alone or list origins")
    return ",".join(origins)


def _hosts(value: str) -> str:
    names = [name.strip().lower() for name in value.split(",") if name.strip()]
    for name in names:
        if not _HOST.fullmatch(name):
            raise ValueError(
                f"{name!r} is not a host name: comln.example.org, *.example.org or *, without scheme, port and path"
            )
    return ",".join(names)


def _formats(value: str) -> str:
    return ",".join(parse_formats(value))


Separated = Annotated[str, BeforeValidator(_separated)]


class Settings(BaseSettings):
    """Configuration of `comln-serve`.

    Each field is the flag `--field-name`, the environment variable `COMLN_FIELD_NAME` and the key
    `field_name` of the configuration file; `comln_serve.configuration.sources` reads them.
    `docs/settings.md` is generated from the descriptions.
    """

    model_config = SettingsConfigDict(env_prefix="COMLN_", frozen=True, extra="forbid", allow_inf_nan=False)

    models_dir: Path | None = Field(
        None,
        description="Folder of model bundles. Default: the first of these that holds bundles: models in the working "
        "folder, models in the package (the photo model), models in the clone of an editable install.",
    )
    default_model: str | None = Field(
        None,
        description="Model of an adapt request that names none. Default: "
        "photos-efficientnet-lite0 if there, else the first by name.",
    )
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: Port = Field(8000, description="TCP port to listen on; 0 picks a free one.")
    workers: Annotated[int | Literal["auto"], BeforeValidator(_a_number_or_auto)] = Field(
        1,
        description="Processes that serve behind this port, each with its share of the usable CPUs; auto is one for "
        "two CPUs, and fewer where memory is short. The limits below are of all processes together.",
    )
    embedding_process: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Whether one additional process embeds for several workers, in batches of all of them, so that a "
        "GPU holds each network once: on, off, or auto, which is on where there is a GPU.",
    )
    tls_certificate: Path | None = Field(
        None, description="PEM file of a certificate and its chain, to serve https; needs --tls-key. Default: http."
    )
    tls_key: Path | None = Field(None, description="PEM file of the certificate's private key, without a passphrase.")
    cors_origins: Annotated[Separated, AfterValidator(_origins)] = Field(
        "",
        description="Origins whose pages may call the server from a browser, separated by commas "
        "(https://app.example.org,http://localhost:3000), or *. Default: none.",
    )
    allowed_hosts: Annotated[Separated, AfterValidator(_hosts)] = Field(
        "",
        description="Names by which clients reach the server (the header Host), separated by "
        "commas; *.example.org allows all names below it, * any name. localhost and addresses are "
        "always allowed. Default: only these if host is a loopback address; else any name if keys "
        "are required, and names without a dot if not.",
    )
    database_url: str = Field(
        "sqlite:///comln-serve.db",
        repr=False,  # it may hold a password
        description="Database of classifiers: sqlite:///FILE, relative to the working folder, "
        "sqlite:////absolute/FILE, or postgresql://USER:PASSWORD@HOST:PORT/DATABASE, where %40 "
        "stands for an @ in the password, %25 for a %.",
    )
    require_keys: CliImplicitFlag[bool] = Field(
        False, description="Answer only requests with an API key (docs/security.md); comln-serve keys create makes one."
    )
    requests_per_minute: Annotated[int, Field(ge=1, le=MOST_PER_MINUTE)] | None = Field(
        None,
        description="Requests a minute with a key that has no limit of its own, on each server; "
        "more are answered 429. Default: no limit.",
    )
    max_classifiers: Positive = Field(
        100_000, description="Classifiers stored for a tenant; each version of a name counts."
    )
    max_examples: Positive = Field(
        5000,
        description="Support images of one classifier, later additions included; the time and "
        "memory to adapt grow with them.",
    )
    max_classes: Annotated[int, Field(ge=2)] = Field(
        500, description="Classes of one classifier; the memory to adapt grows with them."
    )
    keep_thumbnails: CliImplicitFlag[bool] = Field(
        False,
        description="Keep a small JPEG of one image of each class, to show classifiers by; the server keeps no images "
        "otherwise. A server without this setting deletes those that its database holds.",
    )
    idempotency_seconds: Annotated[int, Field(ge=1, le=30 * 86_400)] = Field(
        86_400, description="How long a request's Idempotency-Key is remembered."
    )
    provider: Provider = Field(
        "auto",
        description="Where embeddings are computed: cuda (refuses to start if CUDA does not run), "
        "cpu, auto (CUDA where it runs, else cpu), or openvino (on the CPU by OpenVINO instead of ONNX Runtime, in "
        "bfloat16 where the CPU has it; needs the package openvino).",
    )
    inference_threads: Positive | None = Field(
        None,
        description="Batches that each model embeds at the same time on the CPU, each on its own "
        "core; a single image uses all of these cores. Default: the usable CPUs.",
    )
    decode_threads: Positive | None = Field(
        None,
        description="Images decoded at the same time, for all models together; half as many large "
        "images in addition. Default: the usable CPUs.",
    )
    max_batch_size: Positive = Field(
        64, description="Most images of concurrent requests that are embedded together. On a CPU never more than 8."
    )
    max_batch_delay_ms: Annotated[float, Field(ge=0, le=10_000)] = Field(
        2.0,
        description="How long the first image of a batch waits on a GPU for others that are being "
        "decoded. A single image that is alone never waits.",
    )
    max_queue_seconds: Duration = Field(
        10.0,
        description="Time a request may wait without any work on it while others are processed; "
        "over it the answer is 503.",
    )
    max_inference_seconds: Duration = Field(
        30.0,
        description="Time one image may take to be decoded, or one batch to be embedded; over it the answer is 504.",
    )
    classifier_cache_bytes: Annotated[int, Field(ge=0)] = Field(
        256 * 2**20, description="Memory for classifiers in use; 0 reads them from the store."
    )
    max_images: Positive = Field(512, description="Images in one request.")
    max_image_bytes: Positive = Field(16 * 2**20, description="Bytes of one image file.")
    max_image_pixels: Annotated[int, Field(ge=1, le=MOST_PIXELS)] = Field(
        DEFAULT_MAX_PIXELS, description="Width x height of one image."
    )
    image_formats: Annotated[Separated, AfterValidator(_formats)] = Field(
        ",".join(FORMATS),
        description="Accepted formats of image files, separated by commas; HEIC is the format of "
        "iPhone photos, .heif files included.",
    )
    max_body_bytes: Positive = Field(128 * 2**20, description="Bytes of one request body.")
    max_json_bytes: Positive = Field(16 * 2**20, description="Bytes of one JSON body; they are parsed one at a time.")
    max_label_length: Positive = Field(256, description="Characters of one label.")
    max_pending_images: Positive = Field(
        2048,
        description="Images being worked on or waiting, over all requests; each view of an image is one. "
        "More are answered 429.",
    )
    max_pending_requests: Positive = Field(
        256, description="Adapt and predict requests being worked on or waiting; more are answered 429."
    )
    max_pending_bytes: Positive = Field(
        512 * 2**20,
        description="Bytes of request bodies in memory, over all requests, counted as they arrive; "
        "requests that bring more are answered 429.",
    )
    max_receive_seconds: Duration = Field(
        60.0, description="Time the head of a request may take to arrive, and its body; over it the answer is 408."
    )
    max_send_seconds: Duration = Field(
        60.0,
        description="Time a client may take to read 256 KiB of its answer, and on Linux also the time it may go "
        "without reading any of it; over it the connection is dropped.",
    )
    max_solve_seconds: Duration = Field(
        60.0,
        description="Time one adaptation may take to solve, waiting excluded; over it the request "
        "is refused. 3200 images of 81 classes took 25 to 42 seconds, report included.",
    )
    drain_delay_seconds: Annotated[float, Field(ge=0, le=3600)] = Field(
        0.0,
        description="Time after SIGTERM in which requests are still accepted while /health/ready "
        "already answers 503, so that load balancers stop sending first.",
    )
    drain_seconds: Positive = Field(
        30,
        description="Time for running requests to finish once no more are accepted; those that "
        "take longer are answered 503.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug, info, warning or error. Health checks and scrapes that succeed are logged at debug."
    )
    log_format: LogFormat = Field(
        "auto",
        description="Lines of the log, on standard error: json (one object per line) or text. auto: text in a "
        "terminal, json elsewhere.",
    )

    otlp_endpoint: Annotated[str | None, AfterValidator(_an_endpoint)] = Field(
        None,
        description="Collector that traces are sent to by OTLP over HTTP (http://collector:4318; "
        "/v1/traces is added). Default: OpenTelemetry's OTEL_EXPORTER_OTLP_ENDPOINT; without "
        "either, no traces are made.",
    )

    @property
    def host_names(self) -> tuple[str, ...]:
        """`allowed_hosts` as a tuple."""
        return tuple(filter(None, self.allowed_hosts.split(",")))

    @property
    def accepted_formats(self) -> tuple[str, ...]:
        """`image_formats` as a tuple."""
        return parse_formats(self.image_formats)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            given, absent = "tls_certificate", "tls_key"
            if self.tls_certificate is None:
                given, absent = absent, given
            raise ValueError(f"{given} needs {absent}: give both, or neither to serve http")
        if self.max_images > self.max_pending_images:
            raise ValueError(
                f"max_images ({self.max_images}) must not exceed max_pending_images "
                f"({self.max_pending_images}): such a request could never be admitted"
            )
        if self.max_body_bytes > self.max_pending_bytes:
            raise ValueError(
                f"max_body_bytes ({self.max_body_bytes}) must not exceed max_pending_bytes "
                f"({self.max_pending_bytes}): such a body could never be received"
            )
        return self


_PASSWORD = re.compile(r"(?<=://)([^/?#@:]*):.*@|(?<=[?&]password=)[^&#]*", re.IGNORECASE)


def without_password(url: str) -> str:
    """A URL with its password, if any, replaced by ***."""
    return _PASSWORD.sub(lambda found: "***" if found[1] is None else f"{found[1]}:***@", url)
