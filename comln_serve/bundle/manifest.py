"""`bundle.json`: what a bundle says of itself. Format versions 1 to 3."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from comln_serve.bundle.calibration import Calibration
from comln_serve.bundle.head import HorizonRule, Start, Weighting
from comln_serve.flow.problem import MIN_TOLERANCE
from comln_serve.imaging import Preprocessing

FormatVersion = Literal[1, 2, 3]
FORMAT_VERSIONS: tuple[FormatVersion, ...] = (1, 2, 3)
"""What this release reads. Version 2 adds ranges of shots, `comparisons`, `calibration` and more
kinds of heads; version 3 `whitening` and `horizon_rule` of the head, and the names of data sets. A
bundle says the lowest version that has a place for its content, so that older servers go on reading
it."""

MANIFEST, BACKBONE, HEAD, CARD = "bundle.json", "backbone.onnx", "head.safetensors", "README.md"

Tolerance = Annotated[float, Field(ge=MIN_TOLERANCE, lt=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]

Shots = int | tuple[int, int]
"""Support images of a class: one number, or the least and the most between which every class's own
number is drawn."""


def describe_task(ways: int, shots: Shots) -> str:
    """The task in words: "5-way 1-shot", "5-way 1-to-10-shot"."""
    number = f"{shots}" if isinstance(shots, int) else f"{shots[0]}-to-{shots[1]}"
    return f"{ways}-way {number}-shot"


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
        similarity: of a prototype start that is levelled, null otherwise.
        whitening: r of the flow's metric; 0: the paper's flow.
        horizon_rule: where T comes from unless a request says otherwise.
    """

    start: Start
    ways: Annotated[int, Field(ge=2)] | None
    horizon: Annotated[Finite, Field(gt=0)]
    regularisation: Annotated[Finite, Field(ge=0)]
    weighting: Weighting
    # Left out where there are none: version 1 has no such key.
    exponents: Annotated[ExponentsEntry | None, Field(exclude_if=lambda e: e is None)] = None
    similarity: Annotated[float | None, Field(ge=0, le=1, exclude_if=lambda s: s is None)] = None
    # And versions 1 and 2 have none of these.
    whitening: Annotated[Finite, Field(ge=0, exclude_if=lambda r: r == 0)] = 0.0
    horizon_rule: Annotated[HorizonRule, Field(exclude_if=lambda rule: rule == "learned")] = (
        "learned"
    )

    @model_validator(mode="after")
    def _level_prototypes(self) -> Self:
        if self.similarity is not None and self.start != "prototype":
            raise ValueError(f"similarity is for a prototype start, not for a {self.start} one")
        return self


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
        updates: updates made up to the exported checkpoint; 0: not trained.
        seconds: time they took. hardware: the machine, in words.
        versions: of the libraries that matter.
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


class _Measurement(_Part):
    """Mean accuracy over episodes, with half its 95% interval; `shots` as in `Shots`.

    Attributes:
        data: name of the data set, where several were measured or it was given one.
    """

    split: str
    # Left out where there is none: versions 1 and 2 have no such key.
    data: Annotated[str | None, Field(exclude_if=lambda d: d is None)] = None
    ways: int
    shots: int | tuple[Count, Count]
    queries: int
    episodes: int
    seed: int
    mean: Annotated[float, Field(ge=0, le=1)]
    interval: Annotated[Finite, Field(ge=0)]
    command: str

    @property
    def task(self) -> str:
        """The task in words."""
        return describe_task(self.ways, self.shots)

    @model_validator(mode="after")
    def _range_of_shots(self) -> Self:
        if not isinstance(self.shots, int) and self.shots[0] >= self.shots[1]:
            raise ValueError(f"a range of shots is [least, most], got {list(self.shots)}")
        return self


class AccuracyEntry(_Measurement):
    """One measurement of the bundle."""


class ComparisonEntry(_Measurement):
    """Another head, fitted on the bundle's embeddings and measured on the same episodes.

    Attributes:
        head: its name. description: what it is, with its settings.
        ahead: mean difference in accuracy, episode by episode, by which the bundle's own head is
            better (negative: worse). ahead_interval: half its 95% interval.
        unconverged: fits that stopped short of their tolerance.
    """

    head: str
    description: str
    ahead: Annotated[float, Field(ge=-1, le=1)]
    ahead_interval: Annotated[Finite, Field(ge=0)]
    unconverged: Annotated[int, Field(ge=0)]


def format_version(
    head: HeadEntry,
    accuracy: Sequence[AccuracyEntry],
    comparisons: Sequence[ComparisonEntry],
    calibration: Calibration | None = None,
) -> FormatVersion:
    """The lowest version that has a place for this head and these measurements."""
    measured = calibration.tasks if calibration is not None else ()
    named = any(entry.data is not None for entry in (*accuracy, *comparisons, *measured))
    if named or head.whitening or head.horizon_rule != "learned":
        return 3
    plain_shots = all(isinstance(entry.shots, int) for entry in accuracy)
    plain_head = head.exponents is None and head.similarity is None
    return 1 if plain_shots and plain_head and not comparisons and calibration is None else 2


class Manifest(_Part):
    """The whole of `bundle.json`."""

    format_version: FormatVersion
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
    # Left out where there is none: version 1 has no such key.
    comparisons: Annotated[
        tuple[ComparisonEntry, ...], Field(exclude_if=lambda entries: not entries)
    ] = ()
    calibration: Annotated[Calibration | None, Field(exclude_if=lambda c: c is None)] = None

    @model_validator(mode="after")
    def _version_of_the_content(self) -> Self:
        needed = format_version(self.head, self.accuracy, self.comparisons, self.calibration)
        if self.format_version < needed:
            raise ValueError(
                f"the content of this bundle needs format_version {needed}, got "
                f"{self.format_version}: 2 adds ranges of shots, comparisons, calibration, "
                "exponents of the horizon and similarity, 3 whitening, horizon_rule and names of "
                "data sets"
            )
        return self
