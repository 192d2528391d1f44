"""The schema of `bundle.json`. Format versions 1 to 7."""

from typing import Annotated, Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat, model_validator

from comln_serve.bundle.calibration import Calibration, Part
from comln_serve.bundle.head import HorizonLaw, HorizonRule, SolverSettings, Start, Weighting
from comln_serve.domain.sixteen_bits import rounded
from comln_serve.imaging import Preprocessing

FormatVersion = Literal[1, 2, 3, 4, 5, 6, 7, 8]
FORMAT_VERSIONS: tuple[FormatVersion, ...] = get_args(FormatVersion)
"""The versions this release reads. Version 2 adds ranges of shots, `comparisons`, `calibration` and
more kinds of heads; version 3 adds the head's `whitening` and `horizon_rule`, and names of data
sets; version 4 adds `stored_embeddings`, version 5 `crop_fraction`, version 6 `support_views`,
version 7 the head's `shot_offset`, version 8 the calibration's `unknown_relative`. A bundle has the
lowest version that can hold its content, so that older servers can read it.
"""

MANIFEST, BACKBONE, HEAD, CARD = "bundle.json", "backbone.onnx", "head.safetensors", "README.md"

Count = Annotated[int, Field(ge=1)]

Shots = int | tuple[int, int]
"""Support images of a class: a number, or the range from which each class's number is drawn."""

StoredEmbeddings = Literal["float32", "int16"]
"""The form in which servers store support embeddings: as they are, or rounded to 16 bits."""


def as_stored(embeddings: NDArray[np.float32], form: StoredEmbeddings) -> NDArray[np.float32]:
    """Embeddings (M, V d) as of `SupportSet`, rounded if the form is int16: the numbers of a row have one scale."""
    return rounded(embeddings) if form == "int16" else embeddings


def describe_task(ways: int, shots: Shots) -> str:
    """The task in words: "5-way 1-shot", "5-way 1-to-10-shot"."""
    number = f"{shots}" if isinstance(shots, int) else f"{shots[0]}-to-{shots[1]}"
    return f"{ways}-way {number}-shot"


class FileEntry(Part):
    """A file of the bundle: a plain name inside its folder, its size in bytes, its SHA-256."""

    path: str
    bytes: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Files(Part):
    """The files a bundle is loaded from."""

    backbone: FileEntry
    head: FileEntry


class HeadEntry(Part):
    """The head's scalars, see `bundle.head.Head`; `ways` is null but for a "learned" start. Its tensors are in
    `head.safetensors`.
    """

    start: Start
    ways: Annotated[int, Field(ge=2)] | None
    horizon: Annotated[FiniteFloat, Field(gt=0)]
    regularisation: Annotated[FiniteFloat, Field(ge=0)]
    weighting: Weighting
    exponents: Annotated[HorizonLaw | None, Field(exclude_if=lambda e: e is None)] = None
    similarity: Annotated[float | None, Field(ge=0, le=1, exclude_if=lambda s: s is None)] = None
    shot_offset: Annotated[FiniteFloat, Field(exclude_if=lambda beta: beta == 0)] = 0.0
    whitening: Annotated[FiniteFloat, Field(ge=0, exclude_if=lambda r: r == 0)] = 0.0
    horizon_rule: Annotated[HorizonRule, Field(exclude_if=lambda rule: rule == "learned")] = "learned"

    @model_validator(mode="after")
    def _options_of_the_start(self) -> Self:
        if self.similarity is not None and self.start != "prototype":
            raise ValueError(f"similarity is for a prototype start, not for a {self.start} one")
        if self.shot_offset and self.start != "prototype":
            raise ValueError(f"shot_offset is for a prototype start, not for a {self.start} one")
        return self


class TrainingEntry(Part):
    """How the weights were trained.

    Attributes:
        data: description of the training data.
        command: what reproduces the training.
        config: the recipe as used, overrides applied.
        updates: updates up to the exported checkpoint; 0: not trained.
        seconds: duration of these updates.
        hardware: description of the machine.
        versions: of the relevant libraries.
        notes: other information for users, such as how the model was chosen.
    """

    data: str
    command: str
    config: dict[str, Any]
    seed: int
    updates: int
    seconds: FiniteFloat
    hardware: str
    versions: dict[str, str]
    notes: str


class _Measurement(Part):
    """Mean accuracy over episodes, with half its 95% interval; `shots` as in `Shots`.

    Attributes:
        data: name of the data set, if there are several or it was given one.
    """

    split: str
    data: Annotated[str | None, Field(exclude_if=lambda d: d is None)] = None
    ways: int
    shots: int | tuple[Count, Count]
    queries: int
    episodes: int
    seed: int
    mean: Annotated[float, Field(ge=0, le=1)]
    interval: Annotated[FiniteFloat, Field(ge=0)]
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
        head: its name.
        description: its kind and settings.
        ahead: mean over episodes of the bundle's accuracy minus this head's.
        ahead_interval: half of ahead's 95% interval.
        unconverged: number of fits that missed their tolerance.
    """

    head: str
    description: str
    ahead: Annotated[float, Field(ge=-1, le=1)]
    ahead_interval: Annotated[FiniteFloat, Field(ge=0)]
    unconverged: Annotated[int, Field(ge=0)]


class Manifest(Part):
    """The whole of `bundle.json`."""

    format_version: FormatVersion
    description: str
    licence: str
    created: str
    files: Files
    preprocessing: Preprocessing
    embedding_size: Count
    head: HeadEntry
    solver: SolverSettings
    training: TrainingEntry
    accuracy: tuple[AccuracyEntry, ...]
    comparisons: Annotated[tuple[ComparisonEntry, ...], Field(exclude_if=lambda entries: not entries)] = ()
    calibration: Annotated[Calibration | None, Field(exclude_if=lambda c: c is None)] = None
    stored_embeddings: Annotated[StoredEmbeddings, Field(exclude_if=lambda stored: stored == "float32")] = "float32"

    @property
    def lowest_version(self) -> FormatVersion:
        """The lowest version that can hold this content."""
        head, calibration = self.head, self.calibration
        measured = calibration.tasks if calibration is not None else ()
        named = any(entry.data is not None for entry in (*self.accuracy, *self.comparisons, *measured))
        plain_shots = all(isinstance(entry.shots, int) for entry in self.accuracy)
        plain_head = head.exponents is None and head.similarity is None
        needs: tuple[tuple[FormatVersion, bool], ...] = (
            (8, calibration is not None and calibration.unknown_relative),
            (7, head.shot_offset != 0),
            (6, bool(self.preprocessing.support_views)),
            (5, self.preprocessing.crop_fraction != 1.0),
            (4, self.stored_embeddings != "float32"),
            (3, named or head.whitening != 0 or head.horizon_rule != "learned"),
            (2, not plain_shots or not plain_head or bool(self.comparisons) or calibration is not None),
            (1, True),
        )
        return next(version for version, needed in needs if needed)

    @model_validator(mode="after")
    def _version_of_the_content(self) -> Self:
        needed = self.lowest_version
        if self.format_version < needed:
            raise ValueError(
                f"the content of this bundle needs format_version {needed}, got "
                f"{self.format_version}: 2 adds ranges of shots, comparisons, calibration, "
                "exponents of the horizon and similarity, 3 whitening, horizon_rule and names of "
                "data sets, 4 stored_embeddings, 5 crop_fraction, 6 support_views, "
                "7 shot_offset, 8 calibration.unknown_relative"
            )
        return self
