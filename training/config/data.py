"""Sections `data` and `augmentation`: the images of a run, and how they are varied in training."""

import re
from typing import Annotated, Literal, Self, cast

from pydantic import Field, field_validator, model_validator

from comln_serve.imaging import Preprocessing
from training.config.section import Fraction, NonNegative, Section

Use = Literal["both", "train", "val"]

PublicKind = Literal["omniglot", "miniimagenet", "tieredimagenet", "cifar_fs", "fc100", "cub"]
"""Kinds of public data sets."""

# "several" stands for the data sets in `sets`; every other kind is one data set.
SEVERAL = "several"

# The name of a data set, used in NAME=PATH on the command line and in tables.
NAME = r"[^/\\|=]+"


class SourceConfig(Section):
    """How one data set is read.

    Attributes:
        kind: a public data set with its standard split, in any of its usual file formats
            ("omniglot", "miniimagenet", "tieredimagenet", "cifar_fs", "fc100", "cub"); your own
            images ("image_folder", "image_csv"); or "embeddings" in the format of LEO.
        rotations: omniglot: in training, 90-degree rotations of a class are classes of their own.
        splits: image_folder: your class lists, a JSON file {split: [classes]} or a file for each
            split, relative to the data; null: <split> folders if there are any, else class_shares.
        class_shares: image_folder and image_csv without splits of their own: shares of the classes
            for train, val and test.
        group: a regular expression that is searched for in file names. Images of a class with the same text in the
            match's first group (or in the whole match) are nearly the same, such as frames of one video, and are never
            in both the support and the query set of an episode.
    """

    kind: Literal[PublicKind, "image_folder", "image_csv", "embeddings", "several"]
    rotations: bool = False
    splits: str | dict[Literal["train", "val", "test"], str] | None = None
    class_shares: tuple[Fraction, Fraction, NonNegative] = (0.64, 0.16, 0.2)
    group: str | None = None

    @field_validator("group")
    @classmethod
    def _expression(cls, group: str | None) -> str | None:
        try:
            re.compile(group or "")
        except re.error as error:
            raise ValueError(f"not a regular expression ({error})") from error
        return group

    @model_validator(mode="after")
    def _options(self) -> Self:
        if self.rotations and self.kind != "omniglot":
            raise ValueError(f'rotations are for kind "omniglot", not {self.kind!r}')
        if self.splits is not None and self.kind != "image_folder":
            raise ValueError(f'splits are for kind "image_folder", not {self.kind!r}')
        if not 0.999 <= sum(self.class_shares) <= 1.001:
            raise ValueError(f"class_shares must sum to 1, got {self.class_shares}")
        return self


class DataSetConfig(SourceConfig):
    """One of several data sets. All share one preprocessing.

    Attributes:
        name: for its path, `--data NAME=PATH`, and for its results.
        use: "both": its train classes are for training, its val classes for validation. "train" or
            "val": all its classes, of any split, are for this use only.
    """

    name: str
    use: Use = "both"

    @field_validator("name")
    @classmethod
    def _usable_name(cls, name: str) -> str:
        if not re.fullmatch(NAME, name):
            raise ValueError("a name is not empty and has none of the characters / \\ | =")
        return name

    @model_validator(mode="before")
    @classmethod
    def _no_preprocessing(cls, tree: object) -> object:
        if isinstance(tree, dict) and "preprocessing" in tree:
            raise ValueError("all data sets share one preprocessing: give it in data.preprocessing, not in a set")
        return cast("object", tree)

    @model_validator(mode="after")
    def _images(self) -> Self:
        if self.kind in {SEVERAL, "embeddings"}:
            raise ValueError(f"kind {self.kind!r} cannot be one of several data sets")
        return self


class DataConfig(SourceConfig):
    """Which images: the classes to train on and those to validate on. See docs/data.md.

    Attributes:
        kind: of the one data set, or "several".
        sets: several: the data sets. The keys of `SourceConfig` are then given for each of them.
        preprocessing: resize-and-crop policy, which a bundle of the run also has; not for embeddings.
    """

    sets: tuple[DataSetConfig, ...] = ()
    preprocessing: Preprocessing = Preprocessing(image_size=84)

    @model_validator(mode="after")
    def _preprocessing_and_sets(self) -> Self:
        if "preprocessing" not in self.model_fields_set and self.kind != "embeddings":
            raise ValueError("preprocessing is needed, such as {image_size: 84}")
        if self.kind != SEVERAL:
            if self.sets:
                raise ValueError(f'sets are for kind "several", not {self.kind!r}')
            return self
        names = [part.name for part in self.sets]
        if len(set(names)) < len(names):
            raise ValueError(f"two sets have the same name, got {', '.join(names)}")
        shares = type(self).model_fields["class_shares"].default
        if self.group is not None or self.class_shares != shares:
            raise ValueError('with kind "several", group and class_shares belong to each of sets')
        for use in ("train", "val"):
            if not self.used_for(use):
                raise ValueError(
                    f"one of sets at least must be for {use}, with use: {use} or both; got "
                    + (", ".join(f"{part.name}: {part.use}" for part in self.sets) or "no set")
                )
        return self

    def used_for(self, use: Literal["train", "val"]) -> tuple[DataSetConfig, ...]:
        """The data sets of `sets` that are used for training, or for validation."""
        return tuple(part for part in self.sets if part.use in {"both", use})

    def one(self, part: DataSetConfig) -> "DataConfig":
        """The configuration of one of `sets` as the only data set."""
        return DataConfig.model_validate(
            part.model_dump(exclude={"name", "use"}) | {"preprocessing": self.preprocessing}
        )


class AugmentationConfig(Section):
    """Random changes of training images; none by default.

    Attributes:
        crop_padding: random crops of the original size from the image padded with this many black pixels.
        flip: half of the images are mirrored.
        jitter: brightness, contrast and saturation are multiplied by factors from 1 - jitter to 1 + jitter.
    """

    crop_padding: Annotated[int, Field(ge=0)] = 0
    flip: bool = False
    jitter: Annotated[float, Field(ge=0, lt=1)] = 0.0
