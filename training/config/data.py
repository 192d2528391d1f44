"""Which images, and what happens to them in training."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from comln_serve.imaging import Preprocessing
from training.config.section import Fraction, NonNegative, Section


class DataConfig(Section):
    """Which images: the classes to train on and those to validate on. See docs/data.md.

    Attributes:
        kind: a data set, whatever form of it there is ("omniglot", "miniimagenet",
            "tieredimagenet", "cifar_fs", "fc100", "cub"), with its standard split; images of your
            own ("image_folder", "image_csv"); or "embeddings" in the format of LEO.
        rotations: omniglot: 90-degree rotations count as classes of their own, in training.
        splits: image_folder: your class lists, a JSON file {split: [classes]} or a file for each
            split, relative to the data; null: <split> folders, or else class_shares.
        class_shares: image_folder and image_csv without splits of their own: shares of the classes
            for train, val and test.
        preprocessing: resize-and-crop policy, carried over into the bundle; not for embeddings.
    """

    kind: Literal[
        "omniglot", "miniimagenet", "tieredimagenet", "cifar_fs", "fc100", "cub",
        "image_folder", "image_csv", "embeddings",
    ]  # fmt: skip
    rotations: bool = False
    splits: str | dict[Literal["train", "val", "test"], str] | None = None
    class_shares: tuple[Fraction, Fraction, NonNegative] = (0.64, 0.16, 0.2)
    preprocessing: Preprocessing = Preprocessing(image_size=84)

    @model_validator(mode="after")
    def _options_of_the_kind(self) -> Self:
        if self.rotations and self.kind != "omniglot":
            raise ValueError(f'rotations are for kind "omniglot", not {self.kind!r}')
        if self.splits is not None and self.kind != "image_folder":
            raise ValueError(f'splits are for kind "image_folder", not {self.kind!r}')
        if "preprocessing" not in self.model_fields_set and self.kind != "embeddings":
            raise ValueError("preprocessing is needed, such as {image_size: 84}")
        return self

    @model_validator(mode="after")
    def _shares_of_a_whole(self) -> Self:
        if not 0.999 <= sum(self.class_shares) <= 1.001:
            raise ValueError(f"class_shares must sum to 1, got {self.class_shares}")
        return self


class AugmentationConfig(Section):
    """What happens to training images; the default is nothing.

    Attributes:
        crop_padding: crops of the original size from an image padded with this many black pixels.
        flip: half of the images are mirrored.
        jitter: brightness, contrast and saturation change by factors of 1 - jitter to 1 + jitter.
    """

    crop_padding: Annotated[int, Field(ge=0)] = 0
    flip: bool = False
    jitter: Annotated[float, Field(ge=0, lt=1)] = 0.0
