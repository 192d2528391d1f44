"""`bundle.json`: what a bundle says of itself. Format version 1."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from comln_serve.bundle.head import Start, Weighting
from comln_serve.flow.problem import MIN_TOLERANCE
from comln_serve.imaging import Preprocessing

FORMAT_VERSION = 1
MANIFEST, BACKBONE, HEAD, CARD = "bundle.json", "backbone.onnx", "head.safetensors", "README.md"

Tolerance = Annotated[float, Field(ge=MIN_TOLERANCE, lt=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(_Part):
    """A file of the bundle: a plain name inside its folder, its size in bytes, its SHA-256."""

    path: str
    bytes: Annotated[int, Field(ge=1)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Files(_Part):
    """The files a bundle is loaded from."""

    backbone: FileEntry
    head: FileEntry


class ExponentsEntry(_Part):
    """How the horizon follows the task; see `comln_serve.bundle.head.HorizonExponents`."""

    examples: Finite
    classes: Finite
    norm: Finite


class HeadEntry(_Part):
    """Start and amount of adaptation; the tensors themselves are in `head.safetensors`.

    Attributes:
        ways: number of classes a "learned" start is tied to, null otherwise.
        horizon: T, in flow time. regularisation: lambda.
        exponents: of a horizon that depends on the task, null otherwise.
    """

    start: Start
    ways: Annotated[int, Field(ge=2)] | None
    horizon: Annotated[Finite, Field(gt=0)]
    regularisation: Annotated[Finite, Field(ge=0)]
    weighting: Weighting
    exponents: ExponentsEntry | None = None


class SolverEntry(_Part):
    """Tolerances of the served solve; atol is measured on the support logits."""

    rtol: Tolerance
    atol: Tolerance
    max_steps: Annotated[int, Field(ge=1)]


class TrainingEntry(_Part):
    """Where the weights come from.

    Attributes:
        data: what the model was trained on, in words.
        command: what reproduces it. config: the recipe as used, overrides applied.
        updates: updates made up to the exported checkpoint. seconds: time they took.
        hardware: the machine, in words. versions: of the libraries that matter.
        notes: what else a user of the model should know, such as how it was chosen.
    """

    data: str
    command: str
    config: dict[str, Any]
    seed: int
    updates: int
    seconds: Finite
    hardware: str
    versions: dict[str, str]
    notes: str


class AccuracyEntry(_Part):
    """One measurement: mean accuracy over episodes, with half its 95% interval."""

    split: str
    ways: int
    shots: int
    queries: int
    episodes: int
    seed: int
    mean: Annotated[float, Field(ge=0, le=1)]
    interval: Annotated[Finite, Field(ge=0)]
    command: str


class Manifest(_Part):
    """The whole of `bundle.json`."""

    format_version: Literal[1]
    description: str
    licence: str
    created: str
    files: Files
    preprocessing: Preprocessing
    embedding_size: Annotated[int, Field(ge=1)]
    head: HeadEntry
    solver: SolverEntry
    training: TrainingEntry
    accuracy: tuple[AccuracyEntry, ...]
